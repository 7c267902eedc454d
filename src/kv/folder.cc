#include "kv/folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/file_size_limit.hpp"
#include "base/printable.hpp"

#include "base/refused_call.hpp"
#include "base/rename_in.hpp"

namespace penstock::kv {

namespace {

constexpr mode_t folder_mode = 0700;
constexpr mode_t file_mode = 0600;
constexpr const char* lock_name = "lock";
constexpr std::string_view lock_magic = "PSTKVLCK ";  // followed by the process id
constexpr unsigned most_links = 40;                   // Linux's limit
constexpr std::size_t most_shown_names = 3;

status os_error(const char* doing, const std::string& path) { return status::from_errno(errno, fmt::format("{} {}", doing, path)); }

// Checks that no other user could have changed the contents.
status check_owner(int number, const std::string& path, bool is_folder) {
  struct stat facts {};
  if (::fstat(number, &facts) != 0) return os_error("look at", path);
  if (is_folder ? !S_ISDIR(facts.st_mode) : !S_ISREG(facts.st_mode))
    return {errc::not_a_file, fmt::format("{} is not a {}", path, is_folder ? "folder" : "regular file")};
  if (facts.st_uid != ::geteuid())
    return {errc::permission_denied, fmt::format("{} is owned by user {}, not by the current user {}", path, facts.st_uid, ::geteuid())};
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return {errc::permission_denied,
            fmt::format("{} is writable by other users (mode {:o}): run chmod go-w on it", path, facts.st_mode & 07777)};
  return {};
}

template <class Call>
auto again_if_interrupted(Call&& call) {
  auto done = call();
  while (done < 0 && errno == EINTR) done = call();
  return done;
}

// Returns the start of the lock file's text. Versions before the magic number wrote only the process id.
std::string lock_text(int lock) {
  std::array<char, 40> text{};
  const auto length = again_if_interrupted([&] { return ::pread(lock, text.data(), text.size() - 1, 0); });
  return length > 0 ? std::string(text.data(), std::strcspn(text.data(), "\n")) : std::string();
}

std::string holder_of(int lock) {
  auto text = lock_text(lock);
  if (text.starts_with(lock_magic)) text.erase(0, lock_magic.size());
  return text.empty() ? "another process" : fmt::format("process {}", printable_text(text));
}

// Opens a folder component by component and checks each symbolic link before following it.
class path_walk {
 public:
  static result<descriptor> open(const std::string& path, bool create) {
    path_walk walk(path);
    walk.push(path);
    while (!walk.left_.empty()) {
      if (status error = walk.step(create); !error.ok()) return error;
    }
    descriptor made(::openat(walk.at_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!made.is_open()) return os_error("open the folder", path);
    return made;
  }

 private:
  explicit path_walk(const std::string& path) : path_(path), at_(::open(".", O_PATH | O_CLOEXEC)) {}

  // Prepends a path to the remaining components.
  void push(std::string_view path) {
    if (path.starts_with('/')) at_ = descriptor(::open("/", O_PATH | O_CLOEXEC));
    while (!path.empty()) {
      const auto cut = path.rfind('/');
      const auto last = cut == std::string_view::npos ? path : path.substr(cut + 1);
      if (!last.empty() && last != ".") left_.emplace_back(last);
      path = cut == std::string_view::npos ? std::string_view() : path.substr(0, cut);
    }
  }

  status step(bool create) {
    const std::string name = std::move(left_.back());
    left_.pop_back();
    descriptor next = enter(name);
    if (!next.is_open() && errno == ENOENT && create && left_.empty()) {
      if (::mkdirat(at_.number(), name.c_str(), folder_mode) != 0 && errno != EEXIST) return os_error("create the folder", path_);
      next = enter(name);
    }
    struct stat facts {};
    if (!next.is_open() || ::fstat(next.number(), &facts) != 0) return os_error("open the folder", path_);
    if (S_ISLNK(facts.st_mode)) return follow(next, name, facts.st_uid);
    at_ = std::move(next);
    return {};
  }

  [[nodiscard]] descriptor enter(const std::string& name) const {
    return descriptor(::openat(at_.number(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  }

  status follow(const descriptor& link, const std::string& name, uid_t owner) {
    if (owner != 0 && owner != ::geteuid())
      return {errc::permission_denied,
              fmt::format("{}: {} is a symbolic link owned by user {}, not by the current user {}: use the path of the folder itself",
                          path_, printable_text(name), owner, ::geteuid())};
    std::array<char, PATH_MAX> target{};
    const auto length = ::readlinkat(link.number(), "", target.data(), target.size());
    if (length >= 0 && ++links_ > most_links) errno = ELOOP;
    if (length < 0 || links_ > most_links) return os_error("open the folder", path_);
    push({target.data(), static_cast<std::size_t>(length)});
    return {};
  }

  const std::string& path_;
  descriptor at_;
  std::vector<std::string> left_;  // remaining components, the next one last
  unsigned links_ = 0;
};

struct closing_listing {
  void operator()(DIR* listed) const noexcept { ::closedir(listed); }
};

// Returns what flock(2) would, but uses fcntl(2) locks if the file system or a sandbox rejects flock.
int lock_whole(int fd) {
  if (again_if_interrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0) return 0;
  if (!is_refused_call(errno)) return -1;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return again_if_interrupted([&] { return ::fcntl(fd, F_OFD_SETLK, &whole); });
}

}  // namespace

descriptor& descriptor::operator=(descriptor&& other) noexcept {
  if (number_ >= 0 && this != &other) ::close(number_);
  number_ = std::exchange(other.number_, -1);
  return *this;
}

descriptor::~descriptor() {
  if (number_ >= 0) ::close(number_);
}

result<folder> folder::open(const std::string& path, bool create) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return status(errc::invalid_argument, "the folder's path must not be empty or contain NUL bytes");
  auto opened = path_walk::open(path, create);
  if (!opened) return opened.error();
  folder made;
  made.path_ = path;
  made.descriptor_ = *std::move(opened);
  if (status error = check_owner(made.descriptor_.number(), path, true); !error.ok()) return error;
  return made;
}

status folder::check_may_hold_new_store() const {
  const int fd = ::openat(descriptor_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, closing_listing> listing(fd < 0 ? nullptr : ::fdopendir(fd));
  if (listing == nullptr) return os_error("list", path_);
  std::vector<std::string> names;
  while (const auto* each = ::readdir(listing.get())) {  // NOLINT(concurrency-mt-unsafe): the directory stream is local
    const std::string_view name = each->d_name;
    if (name != "." && name != ".." && name != "lost+found") names.emplace_back(name);  // lost+found belongs to the file system
  }
  if (names.empty()) return {};
  // Check after listing: a new store writes the magic number before it creates another file.
  if (const auto locked = open_file(lock_name, false); locked.ok()) {
    const auto size = size_of(*locked, path_of(lock_name));
    const bool is_new = names.size() == 1 && size.ok() && *size == 0;
    if (is_new || lock_text(locked->number()).starts_with(lock_magic)) return {};
  }
  std::ranges::sort(names);
  std::string shown;
  for (std::size_t i = 0; i < std::min(names.size(), most_shown_names); ++i)
    shown += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", printable_text(names[i]));
  return {errc::invalid_argument,
          fmt::format("{} is not a store and contains other files ({}{}): use an empty folder, or one that does not "
                      "exist yet",
                      path_, shown, names.size() > most_shown_names ? ", ..." : "")};
}

result<descriptor> folder::lock() const {
  auto made = make_file(lock_name);
  if (!made) return made.error();
  if (lock_whole(made->number()) != 0) {
    if (errno != EWOULDBLOCK) return os_error("lock", path_of(lock_name));
    return status(errc::would_block, fmt::format("{} is already open for writing in {}: other processes must open it read-only", path_,
                                                 holder_of(made->number())));
  }
  const std::string text = fmt::format("{}{}\n", lock_magic, ::getpid());
  // Do not fail on a full disk: an existing store can still be read, and values can still be dropped.
  const auto noted = write_at(*made, std::as_bytes(std::span(text)), 0, path_of(lock_name));
  if (noted.error.ok() && ::ftruncate(made->number(), static_cast<off_t>(text.size())) != 0)
    errno = 0;  // text after the line is never read
  return made;
}

result<descriptor> folder::open_file(const char* name, bool write) const {
  const int flags = (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  descriptor made(again_if_interrupted([&] { return ::openat(descriptor_.number(), name, flags); }));
  if (!made.is_open()) return os_error("open", path_of(name));
  if (status error = check_owner(made.number(), path_of(name), false); !error.ok()) return error;
  return made;
}

result<descriptor> folder::make_file(const char* name) const {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  descriptor made(again_if_interrupted([&] { return ::openat(descriptor_.number(), name, flags, file_mode); }));
  if (!made.is_open()) return os_error("make", path_of(name));
  if (status error = check_owner(made.number(), path_of(name), false); !error.ok()) return error;
  return made;
}

result<std::uint64_t> folder::inode_of(const char* name) const {
  struct stat facts {};
  if (::fstatat(descriptor_.number(), name, &facts, AT_SYMLINK_NOFOLLOW) == 0) return std::uint64_t{facts.st_ino};
  if (errno == ENOENT) return std::uint64_t{0};
  return os_error("look at", path_of(name));
}

status folder::replace(const char* from, const char* to) const {
  if (rename_in(descriptor_.number(), from, to) != 0) return os_error("rename the new file to", path_of(to));
  // Some file systems cannot sync a folder (EINVAL) and offer no alternative.
  if (again_if_interrupted([&] { return ::fsync(descriptor_.number()); }) == 0) return {};
  if (is_refused_call(errno) && again_if_interrupted([&] { return ::fdatasync(descriptor_.number()); }) == 0) return {};
  return errno == EINVAL ? status() : os_error("fsync", path_);
}

void folder::remove(const char* name) const noexcept { ::unlinkat(descriptor_.number(), name, 0); }

bool folder::has(const char* name) const noexcept { return ::faccessat(descriptor_.number(), name, F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

result<std::uint64_t> inode_of(const descriptor& file, const std::string& path) {
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) return os_error("look at", path);
  return std::uint64_t{facts.st_ino};
}

result<std::uint64_t> size_of(const descriptor& file, const std::string& path) {
  struct stat facts {};
  if (::fstat(file.number(), &facts) != 0) return os_error("look at", path);
  return static_cast<std::uint64_t>(facts.st_size);
}

status sync_data(const descriptor& file, const std::string& path) {
  if (again_if_interrupted([&] { return ::fdatasync(file.number()); }) == 0) return {};
  if (is_refused_call(errno) && again_if_interrupted([&] { return ::fsync(file.number()); }) == 0) return {};
  return os_error("fdatasync", path);
}

status preallocate(const descriptor& file, std::uint64_t bytes, const std::string& path) {
  const auto length = static_cast<off_t>(bytes);
  if (!fits_file_size_limit(bytes)) {
    errno = EFBIG;
    return os_error(fmt::format("preallocate {} bytes of", bytes).c_str(), path);
  }
  if (again_if_interrupted([&] { return ::fallocate(file.number(), 0, 0, length); }) != 0) {
    const std::string asked = fmt::format("preallocate {} bytes of", bytes);
    if (!is_refused_call(errno)) return os_error(asked.c_str(), path);
  }
  auto size = size_of(file, path);
  if (!size) return size.error();
  if (*size >= bytes) return {};
  return ::ftruncate(file.number(), length) == 0 ? status() : os_error("lengthen", path);
}

result<std::size_t> read_at(const descriptor& file, std::span<std::byte> to, std::uint64_t offset, const std::string& path) {
  std::size_t done = 0;
  while (done < to.size()) {
    const auto part =
        again_if_interrupted([&] { return ::pread(file.number(), &to[done], to.size() - done, static_cast<off_t>(offset + done)); });
    if (part < 0) return os_error("read", path);
    if (part == 0) break;
    done += static_cast<std::size_t>(part);
  }
  return done;
}

written write_at(const descriptor& file, std::span<const std::byte> from, std::uint64_t offset, const std::string& path) {
  written done;
  if (!fits_file_size_limit(offset + from.size())) {
    errno = EFBIG;
    done.error = os_error("write", path);
    return done;
  }
  while (done.bytes < from.size()) {
    const auto part = again_if_interrupted(
        [&] { return ::pwrite(file.number(), &from[done.bytes], from.size() - done.bytes, static_cast<off_t>(offset + done.bytes)); });
    if (part <= 0) {
      if (part == 0) errno = EIO;
      done.error = os_error("write", path);
      break;
    }
    done.bytes += static_cast<std::size_t>(part);
  }
  return done;
}

std::string this_boot() {
  const descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return {};
  std::array<std::byte, 64> text{};
  auto read = read_at(file, text, 0, "boot_id");
  if (!read) return {};
  const std::string_view told(reinterpret_cast<const char*>(text.data()), *read);
  return std::string(told.substr(0, told.find('\n')));
}

}  // namespace penstock::kv
