#include "kv/checksum.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace penstock::kv {

namespace {

constexpr std::uint32_t crc32c_polynomial = 0x82f63b78;

// Table 0: the CRC of a byte; table n: the CRC of the byte followed by n zero bytes.
constexpr auto crc32c_tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> made{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? crc32c_polynomial : 0);
    made[0][byte] = rest;
  }
  for (std::size_t n = 1; n < made.size(); ++n) {
    for (std::size_t byte = 0; byte < 256; ++byte) made[n][byte] = made[n - 1][byte] >> 8 ^ made[0][made[n - 1][byte] & 0xff];
  }
  return made;
}();

std::uint64_t word_at(const std::byte* at) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint32_t step_by_table(std::uint32_t crc, std::uint64_t word) noexcept {
  word ^= crc;
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < 8; ++i) next ^= crc32c_tables[7 - i][word >> (8 * i) & 0xff];
  return next;
}

using lanes_of_row = std::array<std::uint32_t, 4>;

void rows_by_table(lanes_of_row& lanes, const std::byte* at, std::size_t rows) noexcept {
  for (; rows > 0; --rows, at += 32) {
    for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] = step_by_table(lanes[lane], word_at(at + 8 * lane));
  }
}

#if defined(__x86_64__)

bool has_instruction() noexcept {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

[[gnu::target("sse4.2")]] void rows_by_instruction(lanes_of_row& lanes, const std::byte* at, std::size_t rows) noexcept {
  std::uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
  for (; rows > 0; --rows, at += 32) {
    a = _mm_crc32_u64(a, word_at(at));
    b = _mm_crc32_u64(b, word_at(at + 8));
    c = _mm_crc32_u64(c, word_at(at + 16));
    d = _mm_crc32_u64(d, word_at(at + 24));
  }
  lanes = {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(d)};
}

[[gnu::target("sse4.2")]] std::uint32_t words_by_instruction(std::uint32_t crc, const std::byte* at, std::size_t words) noexcept {
  std::uint64_t wide = crc;
  for (; words > 0; --words, at += 8) wide = _mm_crc32_u64(wide, word_at(at));
  return static_cast<std::uint32_t>(wide);
}

#elif defined(__aarch64__)

// All but the oldest ARM processors have the instruction, but g++ targets those too by default.
bool has_instruction() noexcept {
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
  return has;
}

[[gnu::target("+crc")]] void rows_by_instruction(lanes_of_row& lanes, const std::byte* at, std::size_t rows) noexcept {
  auto [a, b, c, d] = lanes;
  for (; rows > 0; --rows, at += 32) {
    a = __crc32cd(a, word_at(at));
    b = __crc32cd(b, word_at(at + 8));
    c = __crc32cd(c, word_at(at + 16));
    d = __crc32cd(d, word_at(at + 24));
  }
  lanes = {a, b, c, d};
}

[[gnu::target("+crc")]] std::uint32_t words_by_instruction(std::uint32_t crc, const std::byte* at, std::size_t words) noexcept {
  for (; words > 0; --words, at += 8) crc = __crc32cd(crc, word_at(at));
  return crc;
}

#else

bool has_instruction() noexcept { return false; }
void rows_by_instruction(lanes_of_row& lanes, const std::byte* at, std::size_t rows) noexcept { rows_by_table(lanes, at, rows); }
std::uint32_t words_by_instruction(std::uint32_t crc, const std::byte*, std::size_t) noexcept { return crc; }

#endif

std::uint32_t last_bytes(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
  for (const std::byte each : bytes) crc = crc >> 8 ^ crc32c_tables[0][(crc & 0xff) ^ std::to_integer<std::uint32_t>(each)];
  return crc;
}

void add_rows(lanes_of_row& lanes, const std::byte* at, std::size_t rows) noexcept {
  has_instruction() ? rows_by_instruction(lanes, at, rows) : rows_by_table(lanes, at, rows);
}

// Changing any bit of the input changes about half of the bits of the output.
std::uint64_t mixed(std::uint64_t word) noexcept {
  word = (word ^ word >> 32) * 0x9e3779b97f4a7c15;
  word = (word ^ word >> 29) * 0xd6e8feb86659fd93;
  return word ^ word >> 32;
}

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t crc = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) crc = step_by_table(crc, word_at(bytes.data()));
  return ~last_bytes(crc, bytes);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  if (!has_instruction()) return crc32c_by_table(bytes, before);
  const std::size_t words = bytes.size() / 8;
  return ~last_bytes(words_by_instruction(~before, bytes.data(), words), bytes.subspan(words * 8));
}

void checksum::add(std::span<const std::byte> bytes) noexcept {
  const std::size_t begun = length_ % row_bytes;
  length_ += bytes.size();
  if (begun != 0) {
    const std::size_t part = std::min(bytes.size(), row_bytes - begun);
    std::copy_n(bytes.begin(), part, rest_.begin() + static_cast<std::ptrdiff_t>(begun));
    bytes = bytes.subspan(part);
    if (begun + part < row_bytes) return;
    add_rows(lanes_, rest_.data(), 1);
  }
  const std::size_t rows = bytes.size() / row_bytes;
  add_rows(lanes_, bytes.data(), rows);
  const auto rest = bytes.subspan(rows * row_bytes);
  std::copy(rest.begin(), rest.end(), rest_.begin());
}

std::uint64_t checksum::value() const noexcept {
  const std::uint32_t tail = crc32c(std::span(rest_).first(length_ % row_bytes));
  std::uint64_t sum = mixed(length_ + (std::uint64_t{tail} << 32));
  sum = mixed(sum ^ (lanes_[0] | std::uint64_t{lanes_[1]} << 32));
  return mixed(sum ^ (lanes_[2] | std::uint64_t{lanes_[3]} << 32));
}

}  // namespace penstock::kv
