#include "sys/core_use.hpp"

#include <algorithm>
#include <cstdio>

namespace penstock::sys {

std::optional<double> wanted_share(const char* told, unsigned cores) noexcept {
  double last_minute = 0;
  unsigned running = 0;  // with the one that asks
  // "0.20 0.18 0.12 1/80 11206"
  if (cores == 0 || std::sscanf(told, "%lf %*f %*f %u/", &last_minute, &running) != 2) return std::nullopt;
  const double others = running > 0 ? running - 1 : 0;
  return std::min(others, 2 * last_minute) / cores;
}

}  // namespace penstock::sys
