// How much memory this process may still take. Pure functions over files; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/status.hpp"

namespace penstock::sys {

struct memory_state {
  std::uint64_t total_bytes = 0;      // of the machine, or of the smallest limit of its cgroups
  std::uint64_t available_bytes = 0;  // without swapping; what the page cache holds of files counts, since it can be dropped
};

// MemTotal and MemAvailable, less where a cgroup (v2) or an ancestor of it has a memory.max: then what that leaves, with the file pages
// that the group holds. meminfo_file: as /proc/meminfo; the others as for cgroup_directories(). Reads small files only. Errors: unsupported
// (no such file, or it says neither).
result<memory_state> memory_state_of(const std::string& meminfo_file, const std::string& membership_file,
                                     const std::string& hierarchy_root);

// The same of this process.
result<memory_state> memory_state_now();

}  // namespace penstock::sys
