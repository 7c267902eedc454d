// Arithmetic on sizes and file offsets that reports overflow. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "penstock/status.hpp"

namespace penstock {

// The largest possible file size: the maximum of off_t.
inline constexpr std::uint64_t max_file_offset = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Returns a + b; nullopt on overflow.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Returns the first offset after [offset, offset+length); nullopt if the range exceeds max_file_offset.
[[nodiscard]] constexpr std::optional<std::uint64_t> range_end(std::uint64_t offset, std::uint64_t length) noexcept {
  const auto end = checked_add(offset, length);
  if (!end || *end > max_file_offset) return std::nullopt;
  return end;
}

// Returns invalid_argument, with offset and length, if offset is negative or the range exceeds max_file_offset.
inline status check_range(std::int64_t offset, std::uint64_t length) {
  if (offset < 0) return {errc::invalid_argument, "negative offset " + std::to_string(offset)};
  if (range_end(static_cast<std::uint64_t>(offset), length)) return {};
  return {errc::invalid_argument,
          "range of " + std::to_string(length) + " bytes at " + std::to_string(offset) + " exceeds the largest file offset"};
}

}  // namespace penstock
