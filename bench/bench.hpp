// The benchmark: how fast this machine moves bytes, each figure beside the ceiling measured in the same run.
// Used by `penstock bench`. One run at a time; blocks until all rows have run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::bench {

struct options {
  std::vector<std::string> rows;     // names, in any order; empty: all
  bool hot = true;                   // rows of files in the page cache (and those of neither kind)
  bool cold = true;                  // rows of files that are not
  bool quick = false;                // small sizes: seconds on a small machine
  std::size_t columns = 80;          // of the table; from 128 on it has all figures in full
  bool show_targets = false;         // print PASS or below beside the rows that have a target
  std::uint64_t size_bytes = 0;      // of the file; 0: 4 GiB, quick: 256 MiB. At least 64 MiB
  std::string file;                  // read this file; made, and kept, when it does not exist. Empty: a temporary one
  std::string directory = ".";       // of temporary files, when no file is named
  std::string device;                // "cuda:0", "host:0"; empty: the engine's first
  unsigned repeats = 0;              // 0: 5 hot (one more run first, to warm up, that does not count), 3 cold
  std::string json_file;             // the report as JSON; "-": to stdout in place of the table
  bool over_sizes = false;           // also calls of each size, from one thread
  std::vector<std::uint64_t> sizes;  // of those; empty: 4 KiB to 64 MiB
  // Called with the report as JSON, before it is written and while the file is still there; may add to it. Its error ends the run. May be
  // empty
  std::function<status(nlohmann::json& report, const std::string& file)> complete;
  std::function<bool()> stop;  // asked between calls; true ends the run after removing its files. May be empty
  std::function<void(std::string_view doing, unsigned rows_done, unsigned rows)> progress;  // may be empty
  std::function<void(const status&)> failed;  // called with the error that ends the run; empty: it is printed on stderr
};

struct row_summary {
  std::string_view name;
  std::string_view summary;
};
std::vector<row_summary> rows();

// Prints the report to stdout. Throws output_failure. Returns 0; 1 when a row failed or moved wrong bytes, or the run could not start or
// was stopped; 2 for an unknown row or a size out of range.
int run(const options& options);

}  // namespace penstock::bench
