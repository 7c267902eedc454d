#include "bench/machine.hpp"

#include <mntent.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "sys/memory_state.hpp"

namespace penstock::bench {
namespace {

constexpr const char* unknown = "unknown";

bool lies_under(const std::string& path, const std::string& mount_point) {
  if (mount_point == "/") return true;
  return path.compare(0, mount_point.size(), mount_point) == 0 && (path.size() == mount_point.size() || path[mount_point.size()] == '/');
}

}  // namespace

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string kernel_release() {
  utsname name{};
  return uname(&name) == 0 ? name.release : unknown;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return unknown;
}

unsigned usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return std::max(1U, std::thread::hardware_concurrency());
}

std::string gpu_driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return "none";
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build": take the first word with a dot.
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return unknown;
}

std::string file_system_of(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  const std::unique_ptr<FILE, decltype(&endmntent)> mounts(setmntent("/proc/self/mounts", "re"), &endmntent);
  if (!real || !mounts) return unknown;
  std::string best_point;
  std::string best_type = unknown;
  mntent entry{};
  char buffer[2 * PATH_MAX];
  while (getmntent_r(mounts.get(), &entry, buffer, sizeof buffer) != nullptr) {
    const std::string point = entry.mnt_dir;
    // Accept equal lengths: if two file systems are mounted on one point, the later one is visible.
    if (!lies_under(real.get(), point) || point.size() < best_point.size()) continue;
    best_point = point;
    best_type = entry.mnt_type;
  }
  return best_type;
}

result<std::uint64_t> available_memory() {
  const auto state = sys::memory_state_now();
  if (!state) return state.error();
  return state->available_bytes;
}

}  // namespace penstock::bench
