// Arithmetic on sizes and file offsets that cannot wrap unseen. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "penstock/status.hpp"

namespace penstock {

// Files end at the largest off_t; a range that reaches further cannot exist.
inline constexpr std::uint64_t max_file_offset = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// a + b, or nothing where that does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// The first offset after [offset, offset+length), or nothing where the range does not fit into a file.
[[nodiscard]] constexpr std::optional<std::uint64_t> range_end(std::uint64_t offset, std::uint64_t length) noexcept {
  const auto end = checked_add(offset, length);
  if (!end || *end > max_file_offset) return std::nullopt;
  return end;
}

// Ok when offset is not negative and the range fits into a file; else errc::invalid_argument naming offset and length.
inline status check_range(std::int64_t offset, std::uint64_t length) {
  if (offset < 0) return {errc::invalid_argument, "negative offset " + std::to_string(offset)};
  if (range_end(static_cast<std::uint64_t>(offset), length)) return {};
  return {errc::invalid_argument,
          "range of " + std::to_string(length) + " bytes at " + std::to_string(offset) + " reaches past the largest file offset"};
}

}  // namespace penstock
