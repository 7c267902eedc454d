// The pipe benchmark behind `penstock pipe-bench`: sends messages of each size between this process and another one that it starts, and
// measures a bare copy between the same two memories for comparison. Blocks until all sizes have been measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::bench {

struct pipe_bench_options {
  std::string from = "host";                  // memory of the sender: "host" or a device ("cuda:0")
  std::string to = "host";                    // memory of the receiver
  std::vector<std::string> channels;          // allowed channels, best first; empty: all
  unsigned connections = 4;                   // maximum number of connections of a tcp pipe
  std::string url = "unix:";                  // address to listen at
  std::vector<std::uint64_t> sizes;           // sizes of a tensor, in bytes; empty: 4 KiB to 1 GiB
  double seconds = 1;                         // approximate duration of each measurement
  bool json = false;                          // print one JSON document instead of the table
  std::size_t columns = 80;                   // width of the table
  bool quiet = false;                         // print only the table, without the list of channels
  std::function<void(const status&)> failed;  // called with the error that ends the run; empty: print it on stderr
};

// Prints a table, or JSON, to stdout. Throws output_failure. program: this executable, started as `program pipe-bench --serve URL ...`.
// Returns 0, or 1 if something failed or bytes were wrong.
int run_pipes(const pipe_bench_options& options, const std::string& program);
// Runs the other process. Returns the same codes.
int serve_pipes(const pipe_bench_options& options);

}  // namespace penstock::bench
