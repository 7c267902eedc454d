// How many cores the cgroups of this process let it use. Pure functions over files; thread-safe.
#pragma once

#include <optional>
#include <string>

namespace penstock::sys {

// The smallest cpu.max (cgroup v2) of the cgroup and its ancestors, in cores, rounded up; nothing where none is set.
// membership_file: as /proc/self/cgroup; hierarchy_root: where the v2 hierarchy is mounted. Reads small files only.
std::optional<unsigned> cpu_quota_cores(const std::string& membership_file, const std::string& hierarchy_root);

// The same for this process, wherever systemd mounts the hierarchy.
std::optional<unsigned> cpu_quota_cores();

}  // namespace penstock::sys
