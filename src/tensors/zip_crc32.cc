#include <array>

#include "penstock/torch_checkpoint.hpp"

namespace penstock {

namespace {

constexpr std::uint32_t polynomial = 0xedb88320;
constexpr std::size_t slices = 8;

// Table 0: the CRC of a byte; table n: the CRC of the byte followed by n zero bytes. They process eight bytes per step.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, slices> made{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? polynomial : 0);
    made[0][byte] = rest;
  }
  for (std::size_t n = 1; n < slices; ++n) {
    for (std::size_t byte = 0; byte < 256; ++byte) made[n][byte] = made[n - 1][byte] >> 8 ^ made[0][made[n - 1][byte] & 0xff];
  }
  return made;
}();

}  // namespace

std::uint32_t zip_crc32(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t crc = ~before;
  for (; bytes.size() >= slices; bytes = bytes.subspan(slices)) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < slices; ++i) {
      const auto shifted = i < 4 ? crc >> (8 * i) & 0xff : 0U;
      next ^= tables[slices - 1 - i][std::to_integer<std::uint32_t>(bytes[i]) ^ shifted];
    }
    crc = next;
  }
  for (const std::byte each : bytes) crc = crc >> 8 ^ tables[0][(crc & 0xff) ^ std::to_integer<std::uint32_t>(each)];
  return ~crc;
}

}  // namespace penstock
