// How many of the machine's cores are wanted. A pure function; thread-safe.
#pragma once

#include <optional>

namespace penstock::sys {

// The share of so many cores that threads want: all that run or wait for a core now, but for the one that asks, or twice the average of the
// last minute where that is less, for a moment says little and the average forgets slowly. More than 1: some wait. told: as /proc/loadavg,
// ended by a zero. Nothing where it is no such text.
std::optional<double> wanted_share(const char* told, unsigned cores) noexcept;

}  // namespace penstock::sys
