// The benchmark behind `penstock bench`: measures how fast this machine moves bytes, and compares each figure with a hardware limit
// measured in the same run. One run at a time; blocks until all rows have run.
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
  std::vector<std::string> rows;     // names of rows, in any order; empty: all
  bool hot = true;                   // rows of cached files (and those that are neither hot nor cold)
  bool cold = true;                  // rows of uncached files
  bool use_io_uring = true;          // false: the engine behaves as if io_uring were forbidden
  bool quick = false;                // small sizes, which take seconds on a small machine
  std::size_t columns = 80;          // width of the table; from 128 on all figures have all digits
  bool show_targets = false;         // print PASS or "below" next to rows with a target
  std::uint64_t size_bytes = 0;      // size of the file; 0: 4 GiB, quick: 256 MiB. At least 64 MiB
  std::string file;                  // file to read; if it does not exist, it is created and kept. Empty: a temporary file
  std::string directory = ".";       // folder for temporary files if no file is named
  std::string device;                // "cuda:0" or "host:0"; empty: the engine's first
  unsigned repeats = 0;              // 0: 5 hot (after one warm-up run), 3 cold
  std::string json_file;             // write the report as JSON; "-": to stdout instead of the table
  bool over_sizes = false;           // also measure calls of each size, from one thread
  std::vector<std::uint64_t> sizes;  // sizes of these calls; empty: 4 KiB to 64 MiB
  // Called with the JSON report before it is written, while the file still exists; may add to the report. An error ends the run. May be
  // empty.
  std::function<status(nlohmann::json& report, const std::string& file)> complete;
  std::function<bool()> stop;  // polled between calls; true ends the run after its files are removed. May be empty
  std::function<void(std::string_view doing, unsigned rows_done, unsigned rows)> progress;  // may be empty
  std::function<void(const status&)> failed;  // called with the error that ends the run; empty: print it on stderr
};

struct row_summary {
  std::string_view name;
  std::string_view summary;
};
std::vector<row_summary> rows();

// Prints the report to stdout. Throws output_failure. Returns 0; 1 if a row failed or moved wrong bytes, or if the run could not start or
// was stopped; 2 for an unknown row or a size out of range.
int run(const options& options);

}  // namespace penstock::bench
