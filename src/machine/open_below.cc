#include "machine/open_below.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <system_error>

namespace penstock::machine {
namespace {

namespace fs = std::filesystem;

// From linux/openat2.h, which headers before Linux 5.6 lack; the number is the same on all architectures.
constexpr long openat2_number = 437;
struct resolving_open {
  std::uint64_t flags = 0;
  std::uint64_t mode = 0;
  std::uint64_t resolve = 0;
};
constexpr std::uint64_t without_magic_links = 0x02;
constexpr std::uint64_t in_root = 0x10;

int open_resolved(const std::string& root, const std::string& path, int flags) {
  const int folder = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  resolving_open how{static_cast<std::uint64_t>(flags), 0, without_magic_links | in_root};
  const long opened = ::syscall(openat2_number, folder, path.c_str(), &how, sizeof how);
  const int error = errno;
  ::close(folder);
  errno = error;
  return static_cast<int>(opened);
}

// Returns the path without links, as seen on that machine. Returns nothing and sets errno to ELOOP if links form a cycle.
std::optional<fs::path> without_links(const std::string& root, const fs::path& path, bool keeps_last) {
  unsigned links_left = 40;  // the kernel's limit
  std::deque<fs::path> rest(path.begin(), path.end());
  fs::path found("/");
  while (!rest.empty()) {
    const fs::path part = rest.front();
    rest.pop_front();
    if (part == "/") found = part;
    if (part == "..") found = found.parent_path();
    if (part.empty() || part == "/" || part == "." || part == "..") continue;
    std::error_code is_none;
    const auto target = rest.empty() && keeps_last ? fs::path() : fs::read_symlink(root + (found / part).string(), is_none);
    if (is_none || target.empty()) {
      found /= part;
    } else if (links_left-- == 0) {
      errno = ELOOP;
      return std::nullopt;
    } else {
      rest.insert(rest.begin(), target.begin(), target.end());
    }
  }
  return found;
}

// Resolves the links before it opens the file. Unlike openat2, this does not protect against a program that replaces links concurrently.
int open_checked(const std::string& root, const std::string& path, int flags) {
  const auto real = without_links(root, path, (flags & O_NOFOLLOW) != 0);
  return real ? ::open((root + real->string()).c_str(), flags | O_NOFOLLOW) : -1;
}

}  // namespace

int open_below(const std::string& root, const std::string& path, int flags) {
  flags |= O_CLOEXEC;
  if (root.empty()) return ::open(path.c_str(), flags);
  const int opened = open_resolved(root, path, flags);
  // Container runtimes that do not know openat2 reject it with EPERM.
  const bool is_refused = opened < 0 && (errno == ENOSYS || errno == EPERM);
  return is_refused ? open_checked(root, path, flags) : opened;
}

}  // namespace penstock::machine
