// The descriptors that this process has open: how many, and of what.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <system_error>

namespace penstock::testing {

// The one that is needed to look is counted too.
inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// By number, as the links of /proc/self/fd name them: "/tmp/x", "anon_inode:[io_uring]". Empty where /proc is missing.
using descriptor_names = std::map<int, std::string>;

// Without the one that is needed to look.
inline descriptor_names descriptor_names_now() {
  const auto looked_at = "/proc/" + std::to_string(::getpid()) + "/fd";
  descriptor_names found;
  std::error_code error;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end; each.increment(error)) {
    std::error_code gone;
    const auto name = std::filesystem::read_symlink(each->path(), gone).string();
    if (!gone && name != looked_at) found[std::stoi(each->path().filename())] = name;
  }
  return found;
}

// In words, such as "7: anon_inode:[io_uring], 8: anon_inode:[eventfd]": those that were not open before, or were of something else.
inline std::string opened_since(const descriptor_names& before, const descriptor_names& now) {
  std::string told;
  for (const auto& [number, name] : now) {
    const auto known = before.find(number);
    if (known != before.end() && known->second == name) continue;
    told += (told.empty() ? "" : ", ") + std::to_string(number) + ": " + name;
  }
  return told;
}

}  // namespace penstock::testing
