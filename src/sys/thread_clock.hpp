// CPU time of the calling thread. Thread-safe.
#pragma once

#include <ctime>

#include <cstdint>

namespace penstock::sys {

// Returns the CPU time in nanoseconds since the thread started, including time in the kernel. Makes a system call.
inline std::int64_t thread_cpu_ns() noexcept {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace penstock::sys
