// How much memory this process may still use. These functions only read files. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/cgroup.hpp"

namespace penstock::sys {

struct memory_state {
  std::uint64_t total_bytes = 0;      // the machine's memory, or the lowest cgroup limit
  std::uint64_t available_bytes = 0;  // available without swapping; includes cached file pages, which the kernel can drop
};

// Returns MemTotal and MemAvailable from /proc/meminfo, or the cgroup limits if they are lower. Reads only small files. Errors: unsupported
// (the file or a value is missing).
result<memory_state> memory_state_of(const text_reader& read);

// Returns this process's memory state.
result<memory_state> memory_state_now();

}  // namespace penstock::sys
