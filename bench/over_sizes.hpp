// Measures how throughput, CPU time and latency depend on the size of a call: for cached and uncached files, unaligned offsets and
// pointers, batches, and plain pread(2) for comparison. One thread; blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/rows.hpp"

namespace penstock::bench {

struct size_point {
  std::string series;  // one of all_series()
  std::uint64_t call_bytes = 0;
  row_result figures;                                 // if it failed or was skipped, with the reason
  std::vector<std::pair<double, double>> latency_us;  // percentile, and the time within which that percentage of calls completed
};

struct size_series {
  std::string_view name;
  std::string_view summary;
};

struct size_sweep {
  std::vector<size_point> points;
  std::optional<ceiling> direct_read;  // of the disk with many reads in flight; nullopt if it could not be measured
};

std::vector<size_series> all_series();
// Returns the default sizes: 4 KiB to 64 MiB.
std::vector<std::uint64_t> usual_sizes(bool quick);
// Measures all series of one size that fit into the file. Errors: cancelled; others are stored in the points.
status measure_size(workbench& bench, std::uint64_t call_bytes, size_sweep& into);
// Measures the limit of the disk. Errors: cancelled.
status measure_disk(workbench& bench, size_sweep& into);

}  // namespace penstock::bench
