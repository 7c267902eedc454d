#include "cli/pending_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace penstock::cli {
namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// What linkat() needs to give a file its name.
bool has_proc() { return ::access("/proc/self/fd", X_OK) == 0; }

// Of a file system, a kernel or a seccomp profile without O_TMPFILE.
bool cannot_be_unnamed(int error) { return error == EOPNOTSUPP || error == EISDIR || error == ENOENT || error == EINVAL || error == EPERM; }

// As rename(2), and it fails where something has the name (EEXIST). NFS cannot rename so (EINVAL), but can link.
int rename_to_free_name(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL) return -1;
  if (::link(from.c_str(), to.c_str()) != 0) return -1;
  ::unlink(from.c_str());
  return 0;
}

}  // namespace

std::string hidden_name(const std::string& path) {
  static std::atomic<unsigned> count{0};
  const std::filesystem::path whole(path);
  std::string name = whole.filename().string();
  // Names have at most 255 bytes; where they must be UTF-8, no letter is cut through.
  if (constexpr std::size_t most = 200; name.size() > most) {
    std::size_t end = most;
    while (end > most - 4 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    name.resize(end);
  }
  return (whole.parent_path() / fmt::format(".{}.penstock-{}-{}", name, ::getpid(), count++)).string();
}

result<pending_file> pending_file::make(const std::string& path, bool unnamed) {
  if (unnamed && has_proc()) {
    owned_fd fd(::open(folder_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd.get() >= 0) return pending_file(path, std::move(fd), {});
    if (!cannot_be_unnamed(errno)) return status::from_errno(errno, fmt::format("make a file in {}", folder_of(path)));
  }
  for (int i = 0; i < most_hidden_names; ++i) {
    std::string name = hidden_name(path);
    owned_fd fd(::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (fd.get() >= 0) return pending_file(path, std::move(fd), std::move(name));
    if (errno != EEXIST) return status::from_errno(errno, fmt::format("make a file in {}", folder_of(path)));
  }
  return status::from_errno(EEXIST, fmt::format("make a hidden file beside {}", path));
}

pending_file::~pending_file() {
  if (!hidden_.empty()) ::unlink(hidden_.c_str());
}

status pending_file::publish(bool replace) {
  // Closing any descriptor has network file systems send what they hold, and say what went wrong.
  owned_fd twin(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (twin.get() < 0) return status::from_errno(errno, fmt::format("close {}", path_));
  if (status error = twin.close(path_); !error.ok()) return error;
  if (hidden_.empty()) {
    const std::string unnamed = fmt::format("/proc/self/fd/{}", fd_.get());
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    if (errno != EEXIST || !replace) return status::from_errno(errno, fmt::format("give {} its name", path_));
    std::string name;
    int number = EEXIST;
    for (int i = 0; i < most_hidden_names && number == EEXIST; ++i) {
      name = hidden_name(path_);
      number = ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    }
    if (number != 0) return status::from_errno(number, fmt::format("give a copy beside {} its name", path_));
    hidden_ = std::move(name);
  }
  if (!replace) {
    if (rename_to_free_name(hidden_, path_) != 0) return status::from_errno(errno, fmt::format("give {} its name", path_));
  } else if (::rename(hidden_.c_str(), path_.c_str()) != 0) {
    return status::from_errno(errno, fmt::format("rename to {}", path_));
  }
  hidden_.clear();
  return {};
}

}  // namespace penstock::cli
