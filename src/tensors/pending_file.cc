#include "penstock/pending_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock {

namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// What linkat() needs to give a file its name.
bool has_proc() { return ::access("/proc/self/fd", X_OK) == 0; }

// Of a file system, a kernel or a seccomp profile without O_TMPFILE.
bool cannot_be_unnamed(int error) { return error == EOPNOTSUPP || error == EISDIR || error == ENOENT || error == EINVAL || error == EPERM; }

// What has the name now.
struct present {
  std::string path;  // without a link
  std::optional<unsigned> mode;
};

result<present> look_at_target(const std::string& path) {
  struct stat info {};
  present found{path, {}};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return found;
    return status::from_errno(errno, fmt::format("look at {}", path));
  }
  if (S_ISLNK(info.st_mode)) {
    std::array<char, PATH_MAX> resolved{};
    if (::realpath(path.c_str(), resolved.data()) == nullptr) {
      if (errno == ENOENT) return status(errc::not_a_file, fmt::format("{} is a link to nothing", path));
      return status::from_errno(errno, fmt::format("follow the link {}", path));
    }
    found.path = resolved.data();
    if (::stat(found.path.c_str(), &info) != 0) return status::from_errno(errno, fmt::format("look at {}", found.path));
  }
  if (!S_ISREG(info.st_mode)) return status(errc::not_a_file, fmt::format("{} is no regular file", path));
  // As for who opens it for writing: to replace it, the right to write to its folder would do.
  if (::faccessat(AT_FDCWD, found.path.c_str(), W_OK, AT_EACCESS) != 0) return status::from_errno(errno, fmt::format("write to {}", path));
  found.mode = info.st_mode & 0777;
  return found;
}

// As rename(2), and it fails where something has the name (EEXIST). NFS cannot rename so (EINVAL), but can link.
int rename_to_free_name(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL) return -1;
  if (::link(from.c_str(), to.c_str()) != 0) return -1;
  ::unlink(from.c_str());
  return 0;
}

// Closing any descriptor has network file systems send what they hold, and say what went wrong.
status close_a_twin(int descriptor, const std::string& path) {
  const int twin = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (twin < 0 || (::close(twin) != 0 && errno != EINTR)) return status::from_errno(errno, fmt::format("close {}", path));
  return {};
}

status sync_bytes(int descriptor, const std::string& path) {
  int done = 0;
  do {
    done = ::fdatasync(descriptor);
  } while (done != 0 && errno == EINTR);
  return done == 0 ? status() : status::from_errno(errno, fmt::format("fdatasync {}", path));
}

// Some file systems cannot sync a folder (EINVAL): they have no other way to be told.
status sync_names(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return status::from_errno(errno, fmt::format("open {}", folder));
  int error = 0;
  do {
    error = ::fsync(descriptor) == 0 ? 0 : errno;
  } while (error == EINTR);
  ::close(descriptor);
  return error == 0 || error == EINVAL ? status() : status::from_errno(error, fmt::format("fsync {}", folder));
}

}  // namespace

pending_file::pending_file(std::string path, int descriptor, std::string hidden) noexcept
    : path_(std::move(path)), hidden_(std::move(hidden)), descriptor_(descriptor), process_(::getpid()) {}

pending_file::pending_file(pending_file&& other) noexcept
    : path_(std::move(other.path_)),
      hidden_(std::exchange(other.hidden_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      process_(other.process_),
      published_(other.published_) {}

pending_file& pending_file::operator=(pending_file&& other) noexcept {
  if (this == &other) return *this;
  discard();
  path_ = std::move(other.path_);
  hidden_ = std::exchange(other.hidden_, {});
  descriptor_ = std::exchange(other.descriptor_, -1);
  process_ = other.process_;
  published_ = other.published_;
  return *this;
}

pending_file::~pending_file() { discard(); }

void pending_file::discard() noexcept {
  if (!hidden_.empty() && process_ == ::getpid()) ::unlink(hidden_.c_str());
  hidden_.clear();
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

std::string pending_file::hidden_name(const std::string& path) {
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

namespace {

// Its permissions as open(2) gives them, or exactly those.
status set_mode(int descriptor, const std::optional<unsigned>& mode, const std::string& path) {
  if (!mode || ::fchmod(descriptor, *mode) == 0) return {};
  return status::from_errno(errno, fmt::format("set the mode of {}", path));
}

constexpr unsigned usual_mode = 0666;

struct opened_file {
  int descriptor;
  std::string hidden;
};

result<opened_file> open_pending(const std::string& path, const std::optional<unsigned>& mode, bool unnamed) {
  // Nobody else opens it before it has its mode.
  const unsigned first = mode ? 0600 : usual_mode;
  const std::string folder = folder_of(path);
  if (unnamed && has_proc()) {
    const int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, first);
    if (descriptor >= 0) return opened_file{descriptor, {}};
    if (!cannot_be_unnamed(errno)) return status::from_errno(errno, fmt::format("make a file in {}", folder));
  }
  for (int i = 0; i < pending_file::most_hidden_names; ++i) {
    std::string name = pending_file::hidden_name(path);
    const int descriptor = ::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, first);
    if (descriptor >= 0) return opened_file{descriptor, std::move(name)};
    if (errno != EEXIST) return status::from_errno(errno, fmt::format("make a file in {}", folder));
  }
  return status::from_errno(EEXIST, fmt::format("make a hidden file beside {}", path));
}

}  // namespace

result<pending_file> pending_file::create(const std::string& path, const pending_file_options& options) {
  return or_no_memory([&]() -> result<pending_file> {
    if (path.find('\0') != std::string::npos) return status(errc::invalid_argument, "a path has no zeros in it");
    auto target = look_at_target(path);
    if (!target) return target.error();
    const auto mode = options.mode ? options.mode : target->mode;
    auto opened = open_pending(target->path, mode, options.unnamed);
    if (!opened) return opened.error();
    pending_file made(std::move(target->path), opened->descriptor, std::move(opened->hidden));
    if (status error = set_mode(made.descriptor_, mode, path); !error.ok()) return error;
    return made;
  });
}

status pending_file::publish(const publish_options& options) {
  return or_no_memory([&]() -> status {
    if (published_) return {errc::closed, fmt::format("{} was published already", path_)};
    if (descriptor_ < 0) return {errc::closed, "the pending file was discarded"};
    if (status error = close_a_twin(descriptor_, path_); !error.ok()) return error;
    if (options.durable) {
      if (status error = sync_bytes(descriptor_, path_); !error.ok()) return error;
    }
    if (status error = give_name(options.replace); !error.ok()) return error;
    published_ = true;
    hidden_.clear();
    if (!options.durable) return {};
    const status error = sync_names(folder_of(path_));
    return error.ok() ? error : error.with_context(fmt::format("{} is whole and has its name, but a power cut may undo that", path_));
  });
}

// Of one that has none.
status pending_file::take_hidden_name() {
  const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
  std::string name;
  int number = EEXIST;
  for (int i = 0; i < most_hidden_names && number == EEXIST; ++i) {
    name = hidden_name(path_);
    number = ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  }
  if (number != 0) return status::from_errno(number, fmt::format("give a copy beside {} its name", path_));
  hidden_ = std::move(name);
  return {};
}

status pending_file::give_name(bool replace) {
  if (hidden_.empty()) {
    const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    if (errno != EEXIST || !replace) return status::from_errno(errno, fmt::format("give {} its name", path_));
    if (status error = take_hidden_name(); !error.ok()) return error;
  }
  if (!replace) {
    if (rename_to_free_name(hidden_, path_) != 0) return status::from_errno(errno, fmt::format("give {} its name", path_));
  } else if (::rename(hidden_.c_str(), path_.c_str()) != 0) {
    return status::from_errno(errno, fmt::format("rename to {}", path_));
  }
  return {};
}

}  // namespace penstock
