#include "sys/cache_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/file_size_limit.hpp"
#include "base/no_memory.hpp"
#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

using namespace std::chrono_literals;

struct closing_listing {
  void operator()(DIR* folder) const noexcept { closedir(folder); }
};

// Returns the errno of a call that takes no file name. Works even if there is no memory for a message.
status failed(const char* call) noexcept {
  const int problem = errno;
  return or_no_memory([&] { return status::from_errno(problem, call); });
}

status not_ours(const std::string& name, const struct stat& facts) {
  if (!S_ISDIR(facts.st_mode)) return {errc::permission_denied, fmt::format("{} is not a folder", name)};
  if (facts.st_uid != geteuid())
    return {errc::permission_denied, fmt::format("{} belongs to user {}, but this process runs as user {}", name, facts.st_uid, geteuid())};
  if ((facts.st_mode & 022) != 0)
    return {errc::permission_denied, fmt::format("{} is writable by other users (mode {:o}; expected 700)", name, facts.st_mode & 07777)};
  return {};
}

std::int64_t ns_of(const timespec& time) noexcept { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

cache_file_facts facts_from(const struct stat& seen) noexcept {
  return {static_cast<std::uint64_t>(seen.st_size),
          static_cast<std::uint64_t>(seen.st_blocks) * 512,
          seen.st_ino,
          ns_of(seen.st_mtim),
          ns_of(seen.st_ctim),
          seen.st_nlink > 0};
}

struct flock range_lock(short kind, const byte_range& what) noexcept {
  struct flock made {};
  made.l_type = kind;
  made.l_whence = SEEK_SET;
  made.l_start = static_cast<off_t>(what.offset);
  made.l_len = static_cast<off_t>(what.length);
  return made;
}

// Descriptors that forked children must not inherit. The lock is held during fork(), so that the child's copy of the list is consistent.
struct private_descriptors {
  std::mutex lock;
  std::vector<int> all;

  void end_in_child() noexcept {
    const int nothing = all.empty() ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (const int fd : all) {  // the descriptor number stays in use, because the child may still close it
      if (nothing >= 0) (void)::dup3(nothing, fd, O_CLOEXEC);
    }
    if (nothing >= 0) (void)::close(nothing);
    all.clear();
    lock.unlock();
  }
};

private_descriptors& privates() {
  static auto& made = *[] {
    auto* const kept = new private_descriptors;  // never freed: a child may be forked while the process exits
    (void)pthread_atfork([] { privates().lock.lock(); }, [] { privates().lock.unlock(); }, [] { privates().end_in_child(); });
    return kept;
  }();
  return made;
}

}  // namespace

result<cache_folder> cache_folder::open(const std::string& path) {
  if (!path.starts_with('/') || path.find('\0') != std::string::npos)
    return status(errc::invalid_argument, fmt::format("the folder \"{}\" must be an absolute path", path.substr(0, path.find('\0'))));
  auto name = path;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (::mkdir(name.c_str(), 0700) != 0 && errno != EEXIST) return status::from_errno(errno, fmt::format("create the folder {}", name));
  owned_descriptor folder(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0) {
    const int problem = errno;
    if (problem == ELOOP || problem == ENOTDIR)
      return status(errc::permission_denied, fmt::format("{} is a symbolic link or not a folder", name));
    return status::from_errno(problem, fmt::format("open {}", name));
  }
  struct stat facts {};
  if (::fstat(folder.get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}", name));
  if (auto problem = not_ours(name, facts); !problem.ok()) return problem;
  return cache_folder(std::move(name), std::move(folder));
}

result<owned_descriptor> cache_folder::open_file(const std::string& name, opening how) const {
  // O_NONBLOCK: open() does not block, whatever the type of the file.
  const int flags = (how == opening::to_read ? O_RDONLY : O_RDWR) | (how == opening::or_make ? O_CREAT : 0);
  owned_descriptor file(::openat(folder_.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (file.get() < 0) return status::from_errno(errno, fmt::format("open {}/{}", name_, name));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}/{}", name_, name));
  if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 077) != 0 || facts.st_nlink > 1)
    return status(errc::permission_denied, fmt::format("{}/{} is not a regular file that only this user can access", name_, name));
  return file;
}

result<cache_file_facts> cache_folder::facts_of(const std::string& name) const {
  struct stat facts {};
  if (::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0)
    return status::from_errno(errno, fmt::format("stat {}/{}", name_, name));
  if (!S_ISREG(facts.st_mode)) return status(errc::permission_denied, fmt::format("{}/{} is not a regular file", name_, name));
  return facts_from(facts);
}

void cache_folder::remove(const std::string& name) const noexcept { (void)::unlinkat(folder_.get(), name.c_str(), 0); }

result<std::vector<std::string>> cache_folder::list() const {
  owned_descriptor again(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (again.get() < 0) return status::from_errno(errno, fmt::format("open {}", name_));
  const int fd = ::fcntl(again.get(), F_DUPFD_CLOEXEC, 0);
  std::unique_ptr<DIR, closing_listing> listing(fd < 0 ? nullptr : ::fdopendir(fd));
  if (listing == nullptr) {
    const int problem = errno;
    if (fd >= 0) (void)::close(fd);
    return status::from_errno(problem, fmt::format("list {}", name_));
  }
  std::vector<std::string> found;
  while (found.size() < most_listed) {
    const dirent* const each = ::readdir(listing.get());  // NOLINT(concurrency-mt-unsafe): the stream belongs to this call
    if (each == nullptr) break;
    if (each->d_name[0] != '.') found.emplace_back(each->d_name);
  }
  return found;
}

folder_lock::~folder_lock() {
  if (locked_.get() >= 0) (void)::flock(locked_.get(), LOCK_UN);
}

result<folder_lock> cache_folder::whole_lock(std::chrono::milliseconds most) const {
  constexpr auto pause = 2ms;
  owned_descriptor lock(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) return status::from_errno(errno, fmt::format("open {}", name_));
  for (auto waited = 0ms; !try_own(lock.get()); waited += pause) {
    if (errno != EWOULDBLOCK) return status::from_errno(errno, fmt::format("lock {}", name_));
    if (waited >= most) return status(errc::would_block, fmt::format("another process has locked {}", name_));
    std::this_thread::sleep_for(pause);
  }
  return folder_lock(std::move(lock));
}

result<cache_folder::space> cache_folder::room() const {
  struct statvfs facts {};
  if (uninterrupted([&] { return ::fstatvfs(folder_.get(), &facts); }) != 0)
    return status::from_errno(errno, fmt::format("statvfs {}", name_));
  return space{std::uint64_t{facts.f_blocks} * facts.f_frsize, std::uint64_t{facts.f_bavail} * facts.f_frsize};
}

result<cache_file_facts> cache_file_facts_of(int fd) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return status::from_errno(errno, "fstat");
  return facts_from(facts);
}

bool try_share(int fd) noexcept {
  return uninterrupted([&] { return ::flock(fd, LOCK_SH | LOCK_NB); }) == 0;
}
bool try_own(int fd) noexcept {
  return uninterrupted([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) == 0;
}

result<std::optional<byte_range>> try_claim(int fd, const byte_range& what) noexcept {
  constexpr int most_tries = 8;
  for (int i = 0; i < most_tries; ++i) {
    auto asked = range_lock(F_WRLCK, what);
    if (::fcntl(fd, F_OFD_SETLK, &asked) == 0) return std::optional<byte_range>();
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return failed("fcntl F_OFD_SETLK");
    asked = range_lock(F_WRLCK, what);
    if (::fcntl(fd, F_OFD_GETLK, &asked) != 0) return failed("fcntl F_OFD_GETLK");
    if (asked.l_type == F_UNLCK) continue;  // released in between
    const auto first = static_cast<std::uint64_t>(asked.l_start);
    const auto end = asked.l_len == 0 ? what.offset + what.length : first + static_cast<std::uint64_t>(asked.l_len);
    return std::optional(byte_range{first, end - first});
  }
  return std::optional(what);
}

void let_go(int fd, const byte_range& what) noexcept {
  auto asked = range_lock(F_UNLCK, what);
  (void)::fcntl(fd, F_OFD_SETLK, &asked);
}

not_inherited::not_inherited(int fd) noexcept : fd_(fd) {
  (void)or_no_memory([&]() -> status {
    auto& known = privates();
    const std::lock_guard guard(known.lock);
    known.all.push_back(fd);
    return {};
  });
}

not_inherited::~not_inherited() {
  auto& known = privates();
  const std::lock_guard guard(known.lock);
  const auto found = std::find(known.all.begin(), known.all.end(), fd_);
  if (found != known.all.end()) known.all.erase(found);
}

status read_exactly(int fd, std::span<std::byte> into, std::uint64_t offset) noexcept {
  while (!into.empty()) {
    const auto got = uninterrupted([&] { return ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset)); });
    if (got == 0) errno = EIO;
    if (got <= 0) return failed("pread");
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

status write_exactly(int fd, std::span<const std::byte> from, std::uint64_t offset) noexcept {
  while (!from.empty()) {
    const auto put = uninterrupted([&] { return ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset)); });
    if (put == 0) errno = ENOSPC;
    if (put <= 0) return failed("pwrite");
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

status set_length(int fd, std::uint64_t bytes) noexcept {
  if (!fits_file_size_limit(bytes)) {
    errno = EFBIG;
    return failed("ftruncate");
  }
  if (uninterrupted([&] { return ::ftruncate(fd, static_cast<off_t>(bytes)); }) != 0) return failed("ftruncate");
  return {};
}

void touch(int fd) noexcept { (void)::futimens(fd, nullptr); }

void write_back(int fd, const byte_range& what) noexcept {
  (void)::sync_file_range(fd, static_cast<off_t>(what.offset), static_cast<off_t>(what.length),
                          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

status sync_file(int fd) noexcept {
  if (uninterrupted([&] { return ::fsync(fd); }) != 0) return failed("fsync");
  return {};
}

}  // namespace penstock::sys
