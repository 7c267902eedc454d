#include "sys/core_use.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace penstock::sys {

std::optional<core_use> core_use_in(const char* told) noexcept {
  // "cpu  3357 0 4313 1362393 120 0 5 0 0 0": user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice. The last two are
  // already included in the first two.
  constexpr std::string_view first = "cpu ";
  constexpr std::size_t idle = 3;
  constexpr std::size_t waiting = 4;
  std::array<std::uint64_t, 8> ticks{};
  const char* const end = told + std::strlen(told);
  if (!std::string_view(told).starts_with(first)) return std::nullopt;
  const char* at = told + first.size();
  for (auto& each : ticks) {
    while (at != end && *at == ' ') ++at;
    const auto parsed = std::from_chars(at, end, each);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
  }
  core_use found;
  for (const auto each : ticks) found.ticks += each;
  found.busy_ticks = found.ticks - ticks[idle] - ticks[waiting];
  return found;
}

std::optional<double> used_by_others(const core_use& before, const core_use& after) noexcept {
  if (before.cores == 0 || after.cores == 0 || after.ticks <= before.ticks || after.tick_ns == 0) return std::nullopt;
  const auto all = static_cast<double>(after.ticks - before.ticks);
  const auto busy = after.busy_ticks > before.busy_ticks ? static_cast<double>(after.busy_ticks - before.busy_ticks) : 0;
  const auto own = static_cast<double>(after.own_ns - std::min(before.own_ns, after.own_ns)) / static_cast<double>(after.tick_ns);
  return std::clamp((busy - own) / all, 0.0, 1.0);
}

}  // namespace penstock::sys
