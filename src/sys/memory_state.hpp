// How much memory this process may still take. Pure functions over files; thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/cgroup.hpp"

namespace penstock::sys {

struct memory_state {
  std::uint64_t total_bytes = 0;      // of the machine, or the smallest limit of its cgroups
  std::uint64_t available_bytes = 0;  // without swapping; what the page cache holds of files counts, since it can be dropped
};

// MemTotal and MemAvailable of /proc/meminfo, or what the cgroups leave where that is less. Reads small files only. Errors: unsupported
// (no such file, or it says neither).
result<memory_state> memory_state_of(const text_reader& read);

// The same of this process.
result<memory_state> memory_state_now();

}  // namespace penstock::sys
