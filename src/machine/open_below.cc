#include "machine/open_below.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace penstock::machine {
namespace {

// linux/openat2.h, which headers before Linux 5.6 lack; the number is the same on all architectures.
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

// Links in the way are resolved first; whoever swaps them meanwhile gets the better of this, and not of openat2.
int open_checked(const std::string& root, const std::string& path, int flags) {
  namespace fs = std::filesystem;
  const fs::path named(root + path);
  std::error_code failed;
  const bool keeps_last = (flags & O_NOFOLLOW) != 0;
  const fs::path real = keeps_last ? fs::canonical(named.parent_path(), failed) / named.filename() : fs::canonical(named, failed);
  if (!failed && real != root && !real.string().starts_with(root + "/")) failed = {EXDEV, std::system_category()};
  if (!failed) return ::open(real.c_str(), flags | O_NOFOLLOW);
  errno = failed.value();
  return -1;
}

}  // namespace

int open_below(const std::string& root, const std::string& path, int flags) {
  flags |= O_CLOEXEC;
  if (root.empty()) return ::open(path.c_str(), flags);
  const int opened = open_resolved(root, path, flags);
  // Container runtimes that do not know the call refuse it with EPERM.
  const bool is_refused = opened < 0 && (errno == ENOSYS || errno == EPERM);
  return is_refused ? open_checked(root, path, flags) : opened;
}

}  // namespace penstock::machine
