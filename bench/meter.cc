#include "bench/meter.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace penstock::bench {
namespace {

double to_seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; }

}  // namespace

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return to_seconds(usage.ru_utime) + to_seconds(usage.ru_stime);
}

double gigabytes_per_second(std::uint64_t bytes, double seconds) { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }

std::uint64_t carried_bytes(const engine_stats& stats) {
  std::uint64_t total = 0;
  for (const path_stats& path : stats.by_path) total += path.bytes;
  return total;
}

std::string paths_between(const engine_stats& before, const engine_stats& after) {
  std::vector<std::pair<std::uint64_t, path_kind>> shares;
  std::uint64_t total = 0;
  for (int index = 0; index < path_kind_count; ++index) {
    const auto kind = static_cast<path_kind>(index);
    const std::uint64_t bytes = after.path(kind).bytes - before.path(kind).bytes;
    if (bytes > 0) shares.emplace_back(bytes, kind);
    total += bytes;
  }
  if (shares.empty()) return "none";
  if (shares.size() == 1) return std::string(to_string(shares[0].second));
  std::sort(shares.rbegin(), shares.rend());
  std::string text;
  for (const auto& [bytes, kind] : shares) {
    text += fmt::format("{}{} {:.1f}%", text.empty() ? "" : ", ", to_string(kind),
                        100.0 * static_cast<double>(bytes) / static_cast<double>(total));
  }
  return text;
}

}  // namespace penstock::bench
