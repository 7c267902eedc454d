// CRC-32C for values and index records, computed by a processor instruction if available. A single chain of these instructions is too slow
// for values, so their checksum has four independent lanes: lane 0 covers the 8-byte words 0, 4, 8 and so on, lane 1 the words 1, 5, 9 and
// so on. Pure functions and plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::kv {

// Continues the CRC-32C `before` of preceding bytes with these bytes; 0 if none precede.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;
// The same computed without the instruction, for tests.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

// A checksum over bytes that are added in pieces; the piece boundaries do not affect the result.
class checksum {
 public:
  void add(std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t lane_count = 4;
  static constexpr std::size_t row_bytes = lane_count * 8;

  std::array<std::uint32_t, lane_count> lanes_{~0U, ~0U, ~0U, ~0U};
  std::array<std::byte, row_bytes> rest_{};  // bytes of an incomplete row
  std::uint64_t length_ = 0;
};

}  // namespace penstock::kv
