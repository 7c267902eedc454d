// This process's cgroup limits: version 1 (Docker on RHEL 8, Slurm), version 2, or both at once. These functions only read files.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace penstock::sys {

// For each resource, the lowest limit among the process's groups and all their ancestors. Empty if no limit is set.
struct cgroup_limits {
  std::optional<std::uint64_t> memory_bytes;  // memory.max and memory.high, memory.limit_in_bytes
  // Memory left in the limited group that has the least left. File pages count as free, because the kernel can drop them; tmpfs pages do
  // not.
  std::optional<std::uint64_t> memory_left_bytes;
  std::optional<unsigned> cores;  // cpu.max, cpu.cfs_quota_us, rounded up
};

// Returns the contents of a small file in /proc or /sys; nothing if it is missing or unreadable.
using text_reader = std::function<std::optional<std::string>(const std::string& path)>;

// Reads /proc/self/cgroup, /proc/self/mountinfo (if missing, tries the usual folders below /sys/fs/cgroup), and the groups' files.
cgroup_limits cgroup_limits_of(const text_reader& read);
// Returns the limits of this process.
cgroup_limits cgroup_limits_now();

// Reads a small file.
std::optional<std::string> read_text(const std::string& path);

}  // namespace penstock::sys
