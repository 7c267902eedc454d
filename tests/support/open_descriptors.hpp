// The open descriptors of this process: their number and their targets.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <system_error>

namespace penstock::testing {

// Includes the descriptor that the call itself opens.
inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// Descriptors by number, named like the links of /proc/self/fd: "/tmp/x", "anon_inode:[io_uring]". Empty if /proc is missing.
using descriptor_names = std::map<int, std::string>;

// Excludes the descriptor that the call itself opens.
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

// Returns a text such as "7: anon_inode:[io_uring], 8: anon_inode:[eventfd]" with the descriptors that are new or have another target.
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
