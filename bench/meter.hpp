// What a measured piece of work cost: time, CPU, and the paths that carried its bytes. One thread per object.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "penstock/engine.hpp"

namespace penstock::bench {

// User and system CPU seconds of this process so far, all its threads and io_uring workers included.
double process_cpu_seconds();

// Runs from construction.
class stopwatch {
 public:
  stopwatch() : cpu_start_(process_cpu_seconds()), start_(std::chrono::steady_clock::now()) {}
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  [[nodiscard]] double cpu_seconds() const { return process_cpu_seconds() - cpu_start_; }

 private:
  double cpu_start_;
  std::chrono::steady_clock::time_point start_;
};

// bytes per second in units of 10^9; 0 when no time passed.
double gigabytes_per_second(std::uint64_t bytes, double seconds);

// Bytes that all paths together have carried, pieces of requests still under way included.
std::uint64_t carried_bytes(const engine_stats& stats);
// The paths that carried bytes between two snapshots, largest share first: "staged", or "staged 98.4%, posix 1.6%"; "none" for none.
std::string paths_between(const engine_stats& before, const engine_stats& after);

}  // namespace penstock::bench
