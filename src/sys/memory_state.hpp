// How much memory this process may still use. Pure functions over files; thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/cgroup.hpp"

namespace penstock::sys {

struct memory_state {
  std::uint64_t total_bytes = 0;      // of the machine, or the smallest limit of its cgroups
  std::uint64_t available_bytes = 0;  // without swapping; includes cached file pages, which the kernel can drop
};

// Returns MemTotal and MemAvailable of /proc/meminfo, or the cgroup limits if they are lower. Reads only small files. Errors: unsupported
// (no such file, or values missing).
result<memory_state> memory_state_of(const text_reader& read);

// Returns the memory state of this process.
result<memory_state> memory_state_now();

}  // namespace penstock::sys
