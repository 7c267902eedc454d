// penstock io --sweep: like gds_perf.sh, tests one file with many request sizes, thread counts and transfer types, and writes a table, a
// plot and a CSV file. Called from one thread; starts worker threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/io/io_run.hpp"

namespace penstock::cli {

// Values from the command line; each is a comma-separated list. Empty: the default in its comment.
struct sweep_options {
  bool wanted = false;
  std::string sizes;      // 4K,64K,1M,16M
  std::string threads;    // 1,4,16
  std::string ios;        // read
  std::string transfers;  // 0
  std::string plot, csv;  // names of files; empty: none
};

struct sweep_plan {
  std::vector<std::uint64_t> sizes;
  std::vector<unsigned> threads;
  std::vector<io_type> ios;
  std::vector<transfer_type> transfers;
  [[nodiscard]] std::size_t runs() const { return sizes.size() * threads.size() * ios.size() * transfers.size(); }
};

// Errors: invalid_argument, whose message contains the option and the word; also if there would be more than 512 runs.
result<sweep_plan> parse_sweep(const sweep_options& wanted);

// base: provides the file (its only job has one), the kind of memory and the seconds, where 0 means 1. remarks: about base, shown with
// those of the runs. Returns the exit code. Runs that completed before an error or an interrupt are still shown. The output files are
// created under temporary names before the first run and renamed at the end.
int run_sweep(const sweep_options& wanted, const sweep_plan& plan, const io_plan& base, std::vector<std::string> remarks,
              const output_options& output);

}  // namespace penstock::cli
