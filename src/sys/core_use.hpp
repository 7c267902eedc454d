// CPU time used on the machine's cores. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::sys {

// Sums over all cores since the machine started, in clock ticks of about 1/100 s; but own_ns is the CPU time of this process.
struct core_use {
  unsigned cores = 0;  // online cores of the machine; 0: nothing is known
  std::uint64_t ticks = 0;
  std::uint64_t busy_ticks = 0;
  std::uint64_t tick_ns = 0;
  std::uint64_t own_ns = 0;
};

// Fills ticks and busy_ticks. told: the beginning of /proc/stat, zero-terminated. Returns nothing if the text has another form.
std::optional<core_use> core_use_in(const char* told) noexcept;

// Returns the share of the cores that other processes used between two moments, 0 to 1; nothing if that is unknown.
std::optional<double> used_by_others(const core_use& before, const core_use& after) noexcept;

}  // namespace penstock::sys
