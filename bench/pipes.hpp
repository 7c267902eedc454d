// The benchmark of pipes: messages between this process and another one that it starts, by size, beside a bare copy between the same two
// memories in the same run. Used by `penstock pipe-bench`. Blocks until all sizes have been measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::bench {

struct pipe_bench_options {
  std::string from = "host";                  // where the sender's tensors lie: "host" or a device ("cuda:0")
  std::string to = "host";                    // the receiver's
  std::vector<std::string> channels;          // that may be used, best first; empty: all
  unsigned connections = 4;                   // of a tcp pipe, at most
  std::string url = "unix:";                  // to listen at
  std::vector<std::uint64_t> sizes;           // of a tensor, in bytes; empty: 4 KiB to 1 GiB
  double seconds = 1;                         // that each figure is measured for, about
  bool json = false;                          // one JSON document in place of the table
  std::size_t columns = 80;                   // of the table
  bool quiet = false;                         // the table alone, without the channels that there are
  std::function<void(const status&)> failed;  // called with the error that ends the run; empty: it is printed on stderr
};

// Prints a table, or JSON, to stdout. Throws output_failure. program: this one, to be started as `program pipe-bench --serve URL ...`.
// Returns 0, or 1 when something failed or bytes were wrong.
int run_pipes(const pipe_bench_options& options, const std::string& program);
// The other process. Returns likewise.
int serve_pipes(const pipe_bench_options& options);

}  // namespace penstock::bench
