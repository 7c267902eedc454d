#include "penstock/detail/digest.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace penstock::detail {
namespace {

constexpr std::size_t row_words = digest_row_bytes / sizeof(std::uint64_t);
constexpr std::uint64_t sign = std::uint64_t{1} << 31;

// m(i) in the definition.
constexpr std::uint64_t factor(std::uint64_t i) noexcept {
  std::uint64_t found = (i + 1) * 0x9E3779B97F4A7C15;
  found = (found ^ (found >> 30)) * 0xBF58476D1CE4E5B9;
  found = (found ^ (found >> 27)) * 0x94D049BB133111EB;
  return (found ^ (found >> 31)) | 1;
}

struct column_sums {
  alignas(64) std::array<std::uint64_t, row_words> words{};
  alignas(64) std::array<std::uint64_t, row_words> halves{};
};

// With -O2, GCC vectorizes the loop only because its length is constant and the pointers are restricted. The upper half of a word is
// computed without an arithmetic shift of 64 bits, which SSE2 and AVX2 lack.
void add_row(digest_sums& sums, column_sums& __restrict columns, const std::uint64_t* __restrict row, std::uint64_t number) noexcept {
  std::uint64_t of_words = 0;
  std::uint64_t of_halves = 0;
  for (std::size_t j = 0; j < row_words; ++j) {
    const std::uint64_t half = ((row[j] >> 32) ^ sign) - sign;
    of_words += row[j];
    of_halves += half;
    columns.words[j] += row[j];
    columns.halves[j] += half;
  }
  sums[0] += factor(number) * of_words;
  sums[1] += factor(number) * of_halves;
}

}  // namespace

digest_sums digest_of(std::span<const digest_part> parts) noexcept {
  digest_sums sums{};
  column_sums columns;
  alignas(64) std::array<std::uint64_t, row_words> copy;  // of a row that is short or not aligned
  for (const auto& [memory, bytes, first_row] : parts) {
    const auto* const start = static_cast<const std::byte*>(memory);
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(start) % alignof(std::uint64_t) == 0;
    std::uint64_t number = first_row;
    for (std::uint64_t at = 0; at < bytes; at += digest_row_bytes, ++number) {
      const std::uint64_t left = bytes - at;
      if (is_aligned && left >= digest_row_bytes) {
        add_row(sums, columns, reinterpret_cast<const std::uint64_t*>(start + at), number);
        continue;
      }
      copy.fill(0);
      std::memcpy(copy.data(), start + at, std::min<std::uint64_t>(left, digest_row_bytes));
      add_row(sums, columns, copy.data(), number);
    }
  }
  for (std::size_t j = 0; j < row_words; ++j) {
    sums[2] += factor(j) * columns.words[j];
    sums[3] += factor(j) * columns.halves[j];
  }
  return sums;
}

}  // namespace penstock::detail
