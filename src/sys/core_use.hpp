// CPU time used on the machine's cores. These are pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::sys {

// Sums over all cores since boot, in clock ticks of about 1/100 s, except that own_ns is the CPU time of this process.
struct core_use {
  unsigned cores = 0;  // the machine's online cores; 0: unknown
  std::uint64_t ticks = 0;
  std::uint64_t busy_ticks = 0;
  std::uint64_t tick_ns = 0;
  std::uint64_t own_ns = 0;
};

// Fills ticks and busy_ticks. told: the beginning of /proc/stat, null-terminated. Returns nothing if the format is not recognized.
std::optional<core_use> core_use_in(const char* told) noexcept;

// Returns the fraction of the cores, 0 to 1, that other processes used between two samples; nothing if unknown.
std::optional<double> used_by_others(const core_use& before, const core_use& after) noexcept;

}  // namespace penstock::sys
