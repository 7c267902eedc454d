#include "sys/memory_state.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace penstock::sys {
namespace {

// Returns the number that follows a word.
std::optional<std::uint64_t> number_after(const std::string& text, std::string_view word) {
  std::istringstream words(text);
  std::uint64_t number = 0;
  for (std::string each; words >> each;) {
    if (each == word && words >> number) return number;
  }
  return std::nullopt;
}

result<memory_state> within(const cgroup_limits& limits, const std::optional<std::string>& meminfo) {
  constexpr std::uint64_t kib = 1024;
  const auto total = number_after(meminfo.value_or(""), "MemTotal:");
  const auto available = number_after(meminfo.value_or(""), "MemAvailable:");
  if (!total || !available) return status(errc::unsupported, "/proc/meminfo does not contain MemTotal and MemAvailable");
  const auto most = std::min(*total * kib, limits.memory_bytes.value_or(*total * kib));
  return memory_state{most, std::min({most, *available * kib, limits.memory_left_bytes.value_or(most)})};
}

}  // namespace

result<memory_state> memory_state_of(const text_reader& read) { return within(cgroup_limits_of(read), read("/proc/meminfo")); }

result<memory_state> memory_state_now() { return within(cgroup_limits_now(), read_text("/proc/meminfo")); }

}  // namespace penstock::sys
