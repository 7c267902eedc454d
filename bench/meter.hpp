// Measures time, CPU time and paths of a piece of work. One thread per object.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "penstock/engine.hpp"

namespace penstock::bench {

// Returns the user and system CPU seconds of this process so far, including all threads and io_uring workers.
double process_cpu_seconds();

// Starts when it is constructed.
class stopwatch {
 public:
  stopwatch() : cpu_start_(process_cpu_seconds()), start_(std::chrono::steady_clock::now()) {}
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  [[nodiscard]] double cpu_seconds() const { return process_cpu_seconds() - cpu_start_; }

 private:
  double cpu_start_;
  std::chrono::steady_clock::time_point start_;
};

// Returns 10^9 bytes per second; 0 if no time passed.
double gigabytes_per_second(std::uint64_t bytes, double seconds);

// Returns the bytes that all paths carried, including finished pieces of requests in flight.
std::uint64_t carried_bytes(const engine_stats& stats);
// Returns the paths that carried bytes between two snapshots, largest share first: "staged", or "staged 98.4%, posix 1.6%"; "none" if no
// path did.
std::string paths_between(const engine_stats& before, const engine_stats& after);

}  // namespace penstock::bench
