// What the machine's cores have been used for. A pure function; thread-safe.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::sys {

// Since the machine began, in units of 1/100 s or so, of all cores together; but for own_ns, which is this process's CPU time.
struct core_use {
  unsigned cores = 0;  // of the machine, in use; 0: nothing is known
  std::uint64_t ticks = 0;
  std::uint64_t busy_ticks = 0;
  std::uint64_t tick_ns = 0;
  std::uint64_t own_ns = 0;
};

// ticks and busy_ticks. told: as /proc/stat begins, ended by a zero. Nothing where it is no such text.
std::optional<core_use> core_use_in(const char* told) noexcept;

// The share of the cores that other processes used between two moments, 0 to 1; nothing where that is not known.
std::optional<double> used_by_others(const core_use& before, const core_use& after) noexcept;

}  // namespace penstock::sys
