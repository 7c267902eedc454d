// What the cgroups of this process let it use: of version 1 (Docker on RHEL 8, Slurm), of version 2, and of both at once. Pure functions
// over files; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace penstock::sys {

// The limits of the process's groups and of all their ancestors, the tightest of each kind. Nothing where none is set.
struct cgroup_limits {
  std::optional<std::uint64_t> memory_bytes;  // memory.max and memory.high, memory.limit_in_bytes
  // What the fullest of the groups with such a limit leaves. Pages of files count as free, since the kernel drops them; tmpfs does not.
  std::optional<std::uint64_t> memory_left_bytes;
  std::optional<unsigned> cores;  // cpu.max, cpu.cfs_quota_us, rounded up
};

// The text of a small file of /proc or /sys; nothing where it is missing or may not be read.
using text_reader = std::function<std::optional<std::string>(const std::string& path)>;

// Reads /proc/self/cgroup and /proc/self/mountinfo (without the latter: the usual places below /sys/fs/cgroup), and the groups' files.
cgroup_limits cgroup_limits_of(const text_reader& read);
// Of this process.
cgroup_limits cgroup_limits_now();

// Reads the file system.
std::optional<std::string> read_text(const std::string& path);

}  // namespace penstock::sys
