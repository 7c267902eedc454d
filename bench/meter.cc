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
  std::vector<std::pair<std::uint64_t, std::string>> shares;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < after.by_path.size(); ++i) {
    const std::uint64_t bytes = after.by_path[i].bytes - before.path(static_cast<path_kind>(i)).bytes;
    if (bytes > 0) shares.emplace_back(bytes, after.by_path[i].name);
    total += bytes;
  }
  if (shares.empty()) return "none";
  if (shares.size() == 1) return shares[0].second;
  std::sort(shares.rbegin(), shares.rend());
  std::string text;
  for (const auto& [bytes, name] : shares) {
    text += fmt::format("{}{} {:.1f}%", text.empty() ? "" : ", ", name, 100.0 * static_cast<double>(bytes) / static_cast<double>(total));
  }
  return text;
}

}  // namespace penstock::bench
