// The cgroups (v2) of this process. Pure functions over files; thread-safe.
#pragma once

#include <string>
#include <vector>

namespace penstock::sys {

// The directories of the cgroup and of its ancestors, whose limits all hold; the root of the hierarchy first, which in a cgroup namespace
// is the process's own group. Whether they exist is not asked. membership_file: as /proc/self/cgroup; hierarchy_root: where the v2
// hierarchy is mounted. Reads one small file.
std::vector<std::string> cgroup_directories(const std::string& membership_file, const std::string& hierarchy_root);

}  // namespace penstock::sys
