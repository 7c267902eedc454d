// penstock io --sweep: the job of gds_perf.sh, runs of one file with many sizes of requests, numbers of threads and transfer types; a
// table, a plot and a file of figures. One thread; the work has its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/io/io_run.hpp"

namespace penstock::cli {

// What stood on the command line, each a list with commas. Empty: as below.
struct sweep_options {
  bool wanted = false;
  std::string sizes;      // 4K,64K,1M,16M
  std::string threads;    // 1,4,16
  std::string ios;        // read
  std::string transfers;  // 0
  std::string plot, csv;  // files; empty: none
};

struct sweep_plan {
  std::vector<std::uint64_t> sizes;
  std::vector<unsigned> threads;
  std::vector<io_type> ios;
  std::vector<transfer_type> transfers;
  [[nodiscard]] std::size_t runs() const { return sizes.size() * threads.size() * ios.size() * transfers.size(); }
};

// Errors: invalid_argument, naming the option and the word; where there are more runs than 512.
result<sweep_plan> parse_sweep(const sweep_options& wanted);

// base: its file, its memory and its seconds, of which 0 stands for 1; its job has one file. remarks: of how base came about, told with
// those of the runs. Returns the exit code; runs that came before an error or an interrupt are shown all the same. The files of figures
// are made before the first run, under names of their own, and take the place of what has their names at the end.
int run_sweep(const sweep_options& wanted, const sweep_plan& plan, const io_plan& base, std::vector<std::string> remarks,
              const output_options& output);

}  // namespace penstock::cli
