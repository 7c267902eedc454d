#include "stats/summary.hpp"

#include <fmt/format.h>

namespace penstock::stats {

namespace {

std::string why_not_faster(const path::declaration& path, const path_stats& stats, const status& gpu_direct) {
  if (!path.of_device) return "; host memory, or requested";
  std::string why;
  if (!path.gpu_direct && !gpu_direct.ok()) why += fmt::format("; not GPU-direct: {}", gpu_direct.message());
  if (stats.fallbacks > 0) why += fmt::format("; {} fallbacks, the latest: {}", stats.fallbacks, stats.last_fallback);
  return why;
}

}  // namespace

std::string summarize(const engine_stats& stats, const path::path_table& paths, const status& gpu_direct) {
  std::string told;
  for (std::size_t i = 0; i < stats.by_path.size(); ++i) {
    const auto& each = stats.by_path[i];
    if (each.operations == 0) continue;
    const double speed = each.active_ns == 0 ? 0 : static_cast<double>(each.bytes) / static_cast<double>(each.active_ns);
    told +=
        fmt::format("{}: {:.2f} GB in {} pieces at {:.2f} GB/s", each.name, static_cast<double>(each.bytes) / 1e9, each.operations, speed);
    if (each.errors > 0) told += fmt::format(", {} failed", each.errors);
    // This user's other programs can write to the counters' memory, so there may be more names than paths.
    if (i < paths.count()) told += why_not_faster(paths.of(static_cast<path_kind>(i)), each, gpu_direct);
    told += "\n";
  }
  for (const auto& each : stats.by_channel) {
    told +=
        fmt::format("{}: {:.2f} GB sent in {} tensors, {:.2f} GB received in {}\n", each.name, static_cast<double>(each.sent_bytes) / 1e9,
                    each.sent_tensors, static_cast<double>(each.received_bytes) / 1e9, each.received_tensors);
  }
  return told.empty() ? "no bytes were moved\n" : told;
}

}  // namespace penstock::stats
