#include "sys/memory_state.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>

#include "sys/cgroup.hpp"

namespace penstock::sys {
namespace {

// The number behind a word at the beginning of a line.
std::optional<std::uint64_t> number_of(const std::string& file, std::string_view word) {
  std::ifstream lines(file);
  std::string name;
  for (std::uint64_t value = 0; lines >> name;) {
    if (name == word && lines >> value) return value;
    lines.ignore(4096, '\n');
  }
  return std::nullopt;
}

// Nothing where the group sets no limit: "max" is not a number.
std::optional<memory_state> state_of_group(const std::string& directory) {
  std::uint64_t most = 0;
  std::uint64_t used = 0;
  if (!(std::ifstream(directory + "/memory.max") >> most)) return std::nullopt;
  if (!(std::ifstream(directory + "/memory.current") >> used)) return std::nullopt;
  const auto statistics = directory + "/memory.stat";
  // Without tmpfs, whose pages are not among the file pages here.
  const auto files = number_of(statistics, "inactive_file").value_or(0) + number_of(statistics, "active_file").value_or(0);
  const auto taken = used - std::min(used, files);
  return memory_state{most, most - std::min(most, taken)};
}

}  // namespace

result<memory_state> memory_state_of(const std::string& meminfo_file, const std::string& membership_file,
                                     const std::string& hierarchy_root) {
  constexpr std::uint64_t kib = 1024;
  const auto total = number_of(meminfo_file, "MemTotal:");
  const auto available = number_of(meminfo_file, "MemAvailable:");
  if (!total || !available) return status(errc::unsupported, meminfo_file + " does not say how much memory is available");
  memory_state state{*total * kib, *available * kib};
  for (const auto& directory : cgroup_directories(membership_file, hierarchy_root)) {
    const auto group = state_of_group(directory);
    if (!group) continue;
    state.total_bytes = std::min(state.total_bytes, group->total_bytes);
    state.available_bytes = std::min(state.available_bytes, group->available_bytes);
  }
  return state;
}

result<memory_state> memory_state_now() { return memory_state_of("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"); }

}  // namespace penstock::sys
