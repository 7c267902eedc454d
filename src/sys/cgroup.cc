#include "sys/cgroup.hpp"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace penstock::sys {
namespace {

// The path of the "0::" line, which is the one of cgroup v2; "/" where there is none.
std::string unified_cgroup(const std::string& membership_file) {
  constexpr std::string_view prefix = "0::";
  std::ifstream lines(membership_file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(prefix)) return line.substr(prefix.size());
  }
  return "/";
}

}  // namespace

std::vector<std::string> cgroup_directories(const std::string& membership_file, const std::string& hierarchy_root) {
  std::vector<std::string> found{hierarchy_root};
  std::string group = unified_cgroup(membership_file);
  while (group.ends_with('/')) group.pop_back();
  while (!group.empty()) {
    found.push_back(hierarchy_root + group);
    group.resize(std::min(group.find_last_of('/'), group.size() - 1));
  }
  return found;
}

}  // namespace penstock::sys
