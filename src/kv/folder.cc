#include "kv/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace penstock::kv {

namespace {

constexpr mode_t folder_mode = 0700;
constexpr mode_t file_mode = 0600;

status os_error(const char* doing, const std::string& path) { return status::from_errno(errno, fmt::format("{} {}", doing, path)); }

// Nobody else can have put there what is in it.
status check_owner(int number, const std::string& path, bool is_folder) {
  struct stat facts {};
  if (::fstat(number, &facts) != 0) return os_error("look at", path);
  if (is_folder ? !S_ISDIR(facts.st_mode) : !S_ISREG(facts.st_mode))
    return {errc::not_a_file, fmt::format("{} is no {}", path, is_folder ? "folder" : "regular file")};
  if (facts.st_uid != ::geteuid())
    return {errc::permission_denied, fmt::format("{} belongs to user {}, and this is user {}", path, facts.st_uid, ::geteuid())};
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return {errc::permission_denied, fmt::format("{} can be written by other users (mode {:o}): chmod go-w", path, facts.st_mode & 07777)};
  return {};
}

template <class Call>
auto again_if_interrupted(Call&& call) {
  auto done = call();
  while (done < 0 && errno == EINTR) done = call();
  return done;
}

std::string holder_of(int lock) {
  std::array<char, 24> text{};
  const auto length = ::pread(lock, text.data(), text.size() - 1, 0);
  return length > 0 ? fmt::format("process {}", std::string_view(text.data(), std::strcspn(text.data(), "\n"))) : "another process";
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
  if (path.empty() || path.find('\0') != std::string::npos) return status(errc::invalid_argument, "a folder has a name, without zeros");
  if (create && ::mkdir(path.c_str(), folder_mode) != 0 && errno != EEXIST) return os_error("make the folder", path);
  folder made;
  made.path_ = path;
  made.descriptor_ = descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made.descriptor_.is_open()) return os_error("open the folder", path);
  if (status error = check_owner(made.descriptor_.number(), path, true); !error.ok()) return error;
  return made;
}

result<descriptor> folder::lock() const {
  auto made = make_file("lock");
  if (!made) return made.error();
  if (again_if_interrupted([&] { return ::flock(made->number(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) return os_error("lock", path_of("lock"));
    return status(errc::would_block, fmt::format("{} is open for writing in {}; one process writes, others open it read only", path_,
                                                 holder_of(made->number())));
  }
  // For messages of others only.
  const std::string who = fmt::format("{}\n", ::getpid());
  if (::ftruncate(made->number(), 0) != 0 || ::pwrite(made->number(), who.data(), who.size(), 0) < 0) errno = 0;
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
  if (::renameat(descriptor_.number(), from, descriptor_.number(), to) != 0) return os_error("give its name to", path_of(to));
  // Some file systems cannot sync a folder (EINVAL): they have no other way to be told.
  if (again_if_interrupted([&] { return ::fsync(descriptor_.number()); }) != 0 && errno != EINVAL) return os_error("fsync", path_);
  return {};
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
  return again_if_interrupted([&] { return ::fdatasync(file.number()); }) == 0 ? status() : os_error("fdatasync", path);
}

status preallocate(const descriptor& file, std::uint64_t bytes, const std::string& path) {
  const auto length = static_cast<off_t>(bytes);
  if (again_if_interrupted([&] { return ::fallocate(file.number(), 0, 0, length); }) != 0) {
    const std::string asked = fmt::format("preallocate {} bytes of", bytes);
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return os_error(asked.c_str(), path);
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
