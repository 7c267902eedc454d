#include "sys/cgroup.hpp"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace penstock::sys {
namespace {

// A mounted cgroup hierarchy. controllers: "memory" and "cpu" for version 1; empty for version 2.
struct hierarchy {
  std::vector<std::string> controllers;
  std::string mount;
  std::string root;  // the group at the mount point: "/" outside of containers
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

bool holds(const std::vector<std::string>& words, std::string_view word) { return std::ranges::find(words, word) != words.end(); }

// "31 24 0:27 /docker/1f /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory"
std::optional<hierarchy> hierarchy_of(const std::string& line) {
  std::istringstream in(line);
  const std::vector<std::string> fields{std::istream_iterator<std::string>(in), {}};
  const auto dash = std::ranges::find(fields, "-");
  if (fields.size() < 6 || fields.end() - dash < 4) return std::nullopt;
  const auto& type = dash[1];
  if (type == "cgroup2") return hierarchy{{}, fields[4], fields[3]};
  if (type == "cgroup") return hierarchy{split(dash[3], ','), fields[4], fields[3]};
  return std::nullopt;
}

std::vector<hierarchy> mounted_hierarchies(const text_reader& read) {
  std::vector<hierarchy> found;
  for (const auto& line : split(read("/proc/self/mountinfo").value_or(""), '\n')) {
    if (auto mounted = hierarchy_of(line)) found.push_back(*std::move(mounted));
  }
  if (!found.empty()) return found;
  return {{{}, "/sys/fs/cgroup", "/"},
          {{}, "/sys/fs/cgroup/unified", "/"},
          {{"memory"}, "/sys/fs/cgroup/memory", "/"},
          {{"cpu"}, "/sys/fs/cgroup/cpu", "/"},
          {{"cpu"}, "/sys/fs/cgroup/cpu,cpuacct", "/"}};
}

// Returns the process's group in a hierarchy. /proc/self/cgroup: "4:memory:/docker/1f" for version 1, "0::/user.slice" for version 2.
std::string group_in(const hierarchy& of, const std::string& membership) {
  for (const auto& line : split(membership, '\n')) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool is_it = of.controllers.empty()
                           ? controllers.empty()
                           : std::ranges::any_of(controllers, [&](const auto& each) { return holds(of.controllers, each); });
    if (is_it) return line.substr(second + 1);
  }
  return "/";
}

// Returns the folders of the group and of its ancestors, as far as they are visible in the mount. They may not exist.
std::vector<std::string> folders_of(const hierarchy& of, std::string group) {
  std::vector<std::string> found{of.mount};
  if (of.root != "/" && group.starts_with(of.root)) group.erase(0, of.root.size());
  if (group.find("/..") != std::string::npos) return found;  // outside this cgroup namespace
  while (group.ends_with('/')) group.pop_back();
  while (!group.empty()) {
    found.push_back(of.mount + group);
    group.resize(std::min(group.find_last_of('/'), group.size() - 1));
  }
  return found;
}

std::optional<std::uint64_t> number_in(const std::optional<std::string>& text) {
  std::uint64_t number = 0;
  if (!text || !(std::istringstream(*text) >> number)) return std::nullopt;  // "max" is not a number
  return number;
}

// Returns the number that follows a word at the start of a line.
std::optional<std::uint64_t> number_of(const std::string& text, std::string_view word) {
  for (const auto& line : split(text, '\n')) {
    if (line.starts_with(word) && line.size() > word.size() && line[word.size()] == ' ') return number_in(line.substr(word.size()));
  }
  return std::nullopt;
}

template <class Number>
std::optional<Number> smaller(std::optional<Number> a, std::optional<Number> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// The file names of one cgroup version.
struct memory_files {
  std::vector<const char*> limits;
  const char* used;
  std::vector<const char*> file_pages;       // lines of memory.stat
  const char* limit_of_ancestors = nullptr;  // another line in memory.stat: includes ancestors that are not visible in the mount
};
const memory_files& memory_files_of(const hierarchy& of) {
  static const memory_files first{
      {"/memory.limit_in_bytes"}, "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}, "hierarchical_memory_limit"};
  static const memory_files second{{"/memory.max", "/memory.high"}, "/memory.current", {"inactive_file", "active_file"}};
  return of.controllers.empty() ? second : first;
}

void add_memory(const text_reader& read, const std::string& folder, const memory_files& names, cgroup_limits& to) {
  constexpr std::uint64_t none = std::uint64_t{1} << 60;  // version 1 reports a huge number if no limit is set
  const auto statistics = read(folder + "/memory.stat").value_or("");
  std::optional<std::uint64_t> limit;
  for (const char* name : names.limits) limit = smaller(limit, number_in(read(folder + name)));
  if (names.limit_of_ancestors != nullptr) limit = smaller(limit, number_of(statistics, names.limit_of_ancestors));
  if (!limit || *limit >= none) return;
  to.memory_bytes = smaller(to.memory_bytes, limit);
  const auto used = number_in(read(folder + names.used));
  if (!used) return;
  std::uint64_t files = 0;
  for (const char* name : names.file_pages) files += number_of(statistics, name).value_or(0);
  const auto taken = *used - std::min(*used, files);
  to.memory_left_bytes = smaller<std::uint64_t>(to.memory_left_bytes, *limit - std::min(*limit, taken));
}

// quota and period are in microseconds; "max" and -1 mean no quota.
void add_cores(std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period, cgroup_limits& to) {
  if (!quota || !period || *quota == 0 || *period == 0) return;
  const std::uint64_t cores = *quota / *period + (*quota % *period != 0 ? 1 : 0);
  to.cores = smaller<unsigned>(to.cores, static_cast<unsigned>(std::min<std::uint64_t>(cores, std::numeric_limits<unsigned>::max())));
}

void add_cpu(const text_reader& read, const std::string& folder, bool is_second_version, cgroup_limits& to) {
  if (!is_second_version) {
    const auto quota = read(folder + "/cpu.cfs_quota_us").value_or("");
    if (quota.find('-') == std::string::npos) add_cores(number_in(quota), number_in(read(folder + "/cpu.cfs_period_us")), to);
    return;
  }
  const auto words = split(read(folder + "/cpu.max").value_or(""), ' ');
  if (words.size() == 2) add_cores(number_in(words[0]), number_in(words[1]), to);
}

}  // namespace

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

cgroup_limits cgroup_limits_of(const text_reader& read) {
  cgroup_limits found;
  const auto membership = read("/proc/self/cgroup").value_or("");
  for (const auto& each : mounted_hierarchies(read)) {
    const bool is_second_version = each.controllers.empty();
    const bool has_memory = is_second_version || holds(each.controllers, "memory");
    const bool has_cpu = is_second_version || holds(each.controllers, "cpu");
    if (!has_memory && !has_cpu) continue;
    for (const auto& folder : folders_of(each, group_in(each, membership))) {
      if (has_memory) add_memory(read, folder, memory_files_of(each), found);
      if (has_cpu) add_cpu(read, folder, is_second_version, found);
    }
  }
  return found;
}

// The list of mounts is read once, because it can be long and rarely changes. It is not a static local variable: a child forked while
// another thread initializes one would wait for that thread forever.
cgroup_limits cgroup_limits_now() {
  static std::atomic<const std::optional<std::string>*> known{nullptr};
  if (known.load(std::memory_order_acquire) == nullptr) {
    auto found = std::make_unique<const std::optional<std::string>>(read_text("/proc/self/mountinfo"));
    const std::optional<std::string>* none = nullptr;
    if (known.compare_exchange_strong(none, found.get(), std::memory_order_acq_rel)) (void)found.release();  // kept until the process exits
  }
  const auto& mounts = *known.load(std::memory_order_acquire);
  return cgroup_limits_of([&](const std::string& path) { return path == "/proc/self/mountinfo" ? mounts : read_text(path); });
}

}  // namespace penstock::sys
