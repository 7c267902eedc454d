#include "cli/io/numa.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

namespace penstock::cli {
namespace {

// Parses a core list from the kernel, such as "0-3,8". Ignores cores beyond the capacity of the set.
void add_cores(const std::string& list, const cpu_set_t& usable, cpu_set_t& to) {
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream numbers(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(numbers >> first)) continue;
    if (!(numbers >> dash >> last)) last = first;
    for (int core = first; core <= last && core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &usable)) CPU_SET(core, &to);
    }
  }
}

}  // namespace

status run_on_node(int node) {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return status::from_errno(errno, "get the usable cores");
  std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
  std::string list;
  if (!std::getline(file, list)) {
    if (node == 0) return {};  // a kernel without NUMA support has one node and does not list it
    return {errc::not_found, fmt::format("NUMA node {} does not exist", node)};
  }
  cpu_set_t cores;
  CPU_ZERO(&cores);
  add_cores(list, usable, cores);
  if (CPU_COUNT(&cores) == 0) return {errc::not_found, fmt::format("this process may not use any core on NUMA node {}", node)};
  if (::sched_setaffinity(0, sizeof cores, &cores) != 0) return status::from_errno(errno, fmt::format("run on NUMA node {}", node));
  return {};
}

}  // namespace penstock::cli
