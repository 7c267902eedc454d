// Runs a plan of `penstock io`, once for each request size. Called from one thread; starts worker threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/io/io_latency.hpp"
#include "cli/io/io_plan.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

struct io_job_figures {
  std::string name;  // the file or folder
  std::string device;
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;  // total size of its data
  unsigned threads = 0;
  unsigned depth = 0;
  double seconds = 0;
  latency_counts latencies;
};

struct io_figures {
  io_type io = io_type::read;
  transfer_type transfer = transfer_type::gpu_direct;
  std::uint64_t io_size = 0;
  std::vector<io_job_figures> jobs;
  io_job_figures all;  // name and device are those of the first job
  double cpu_seconds = 0;
  std::string path;                            // the path that transferred the bytes
  std::uint64_t data_bytes = 0;                // total for all files, each counted once
  std::optional<std::uint64_t> cached_before;  // the cached part of data_bytes; nullopt if the kernel does not report it
  std::uint64_t verified_bytes = 0;
  std::uint64_t unwritten_bytes = 0;
  std::vector<std::string> unverified;  // names of files
  std::string ceiling_name;             // empty: none measured
  double ceiling_gbs = 0;
};

// Errors: invalid_argument for the plan; those of files, devices and memory; those of pattern_checker for wrong bytes. After an error,
// removes files that the run created. remarks: lines about this run to show to the user.
result<io_figures> run_io(const engine& owner, const io_plan& plan, std::uint64_t io_size, std::vector<std::string>& remarks);

// Checks for conflicting settings. Errors: invalid_argument.
status check_plan(const io_plan& plan);

}  // namespace penstock::cli
