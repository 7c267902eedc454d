#include "sys/cpu_quota.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

#include "sys/cgroup.hpp"

namespace penstock::sys {
namespace {

// "max 100000" or "250000 100000": microseconds of quota, then of the period.
std::optional<unsigned> cores_of_group(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::uint64_t quota = 0;
  std::uint64_t period = 0;
  if (!(file >> quota >> period) || quota == 0 || period == 0) return std::nullopt;  // "max" is not a number
  const std::uint64_t cores = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<unsigned>(std::min<std::uint64_t>(cores, std::numeric_limits<unsigned>::max()));
}

std::optional<unsigned> smaller(std::optional<unsigned> a, std::optional<unsigned> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

std::optional<unsigned> cpu_quota_cores(const std::string& membership_file, const std::string& hierarchy_root) {
  std::optional<unsigned> cores;
  for (const auto& directory : cgroup_directories(membership_file, hierarchy_root)) cores = smaller(cores, cores_of_group(directory));
  return cores;
}

std::optional<unsigned> cpu_quota_cores() {
  const std::string membership_file = "/proc/self/cgroup";
  return smaller(cpu_quota_cores(membership_file, "/sys/fs/cgroup"), cpu_quota_cores(membership_file, "/sys/fs/cgroup/unified"));
}

}  // namespace penstock::sys
