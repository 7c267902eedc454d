// Calls of each size, from one thread: how throughput, CPU time and latency grow with the size of a call, for files in the page cache and
// not, for odd offsets and pointers, for batches, and for plain pread(2) beside them. One thread; blocks.
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
  row_result figures;                                 // failed and skipped ones have their reason
  std::vector<std::pair<double, double>> latency_us;  // percent of the calls, and what they took at most
};

struct size_series {
  std::string_view name;
  std::string_view summary;
};

struct size_sweep {
  std::vector<size_point> points;
  std::optional<ceiling> direct_read;  // of the disk, with many reads under way; none where it could not be measured
};

std::vector<size_series> all_series();
// What is measured where no sizes are named: 4 KiB to 64 MiB.
std::vector<std::uint64_t> usual_sizes(bool quick);
// All series of one size that fit into the file. Errors: cancelled; others end up in the points.
status measure_size(workbench& bench, std::uint64_t call_bytes, size_sweep& into);
// Adds the ceiling of the disk. Errors: cancelled.
status measure_disk(workbench& bench, size_sweep& into);

}  // namespace penstock::bench
