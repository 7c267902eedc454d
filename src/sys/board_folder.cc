#include "sys/board_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <ctime>
#include <mutex>
#include <thread>

#include <fmt/format.h>

namespace penstock::sys {

namespace {

// Seen to be gone, at the time when the file was last changed.
constexpr mode_t gone_mode = 0400;

long futex(const void* word, int operation, std::uint32_t value) { return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0); }

// Empty where it cannot be read.
std::string maps_of(int pid) {
  std::string maps;
  owned_descriptor from(open(fmt::format("/proc/{}/maps", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (from.get() < 0) return maps;
  char part[4096];
  for (ssize_t count = 0; (count = ::read(from.get(), part, sizeof part)) > 0;) maps.append(part, static_cast<std::size_t>(count));
  return maps;
}

struct closing_folder {
  void operator()(DIR* folder) const noexcept { closedir(folder); }
};

class linux_board_folder final : public board_folder {
 public:
  explicit linux_board_folder(const std::string& parent) : name_(fmt::format("{}/penstock-{}", parent, geteuid())) {}

  result<shared_region> make(std::size_t bytes) override;
  void remove() noexcept override;
  result<std::vector<int>> list() override;
  status read(int pid, std::span<std::byte> into) override;
  result<std::size_t> read_start(int pid, std::span<std::byte> into) override;
  status ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) override;
  bool is_mapped_by(int pid) noexcept override;
  void note_gone(int pid) noexcept override;
  void tidy(std::span<const int> gone) noexcept override;
  [[nodiscard]] const std::string& name() const noexcept override { return name_; }

 private:
  [[nodiscard]] std::string name_of(int pid) const { return fmt::format("{}/{}", name_, pid); }
  [[nodiscard]] result<owned_descriptor> open_folder() const;
  result<owned_descriptor> open_board(int pid, int flags) const;
  result<owned_descriptor> make_file(int folder) const;
  [[nodiscard]] bool made_by_a_copy() const;
  static status read_whole(int fd, std::span<std::byte> into, const std::string& name);

  const std::string name_;
  std::mutex lock_;  // guards made_
  struct {
    int pid = 0;
    std::uint64_t device = 0, inode = 0;
  } made_;
};

result<owned_descriptor> linux_board_folder::open_folder() const {
  owned_descriptor folder(open(name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0) {
    const int problem = errno;
    if (problem == ELOOP || problem == ENOTDIR)
      return status(errc::permission_denied, fmt::format("{} is no folder: somebody has put something else there", name_));
    return status::from_errno(problem, fmt::format("open {}", name_));
  }
  struct stat facts {};
  if (fstat(folder.get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}", name_));
  if (facts.st_uid != geteuid())
    return status(errc::permission_denied, fmt::format("{} belongs to user {}, and this is user {}", name_, facts.st_uid, geteuid()));
  if ((facts.st_mode & 077) != 0)
    return status(errc::permission_denied, fmt::format("{} is open to other users (mode {:o}, not 700)", name_, facts.st_mode & 07777));
  return folder;
}

result<owned_descriptor> linux_board_folder::open_board(int pid, int flags) const {
  const auto folder = open_folder();
  if (!folder) return folder.error();
  owned_descriptor board(openat(folder->get(), std::to_string(pid).c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (board.get() < 0) return status::from_errno(errno, fmt::format("open {}", name_of(pid)));
  struct stat facts {};
  if (fstat(board.get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}", name_of(pid)));
  if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid())
    return status(errc::permission_denied, fmt::format("{} is no file of this user's", name_of(pid)));
  return board;
}

// Where a second copy of this library is in the process (a wheel's beside a system's), only one can have the board.
bool linux_board_folder::made_by_a_copy() const { return maps_of(getpid()).find(name_of(getpid()) + "\n") != std::string::npos; }

result<owned_descriptor> linux_board_folder::make_file(int folder) const {
  const auto pid = std::to_string(getpid());
  for (int tries = 0;; ++tries) {
    owned_descriptor board(openat(folder, pid.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (board.get() >= 0) return board;
    const int problem = errno;
    if (problem != EEXIST || tries == 3) return status::from_errno(problem, fmt::format("make {}", name_of(getpid())));
    if (made_by_a_copy())
      return status(errc::unsupported, fmt::format("another copy of Penstock in this process has {}", name_of(getpid())));
    if (unlinkat(folder, pid.c_str(), 0) != 0 && errno != ENOENT)
      return status::from_errno(errno, fmt::format("remove {}", name_of(getpid())));
  }
}

result<shared_region> linux_board_folder::make(std::size_t bytes) {
  result<owned_descriptor> folder = status(errc::not_found, name_);
  result<owned_descriptor> board = status(errc::not_found, name_);
  // Another process may be the last and remove the folder meanwhile.
  for (int tries = 0; tries < 5 && board.error().code() == errc::not_found; ++tries) {
    if (mkdir(name_.c_str(), 0700) != 0 && errno != EEXIST) return status::from_errno(errno, fmt::format("make the folder {}", name_));
    folder = open_folder();
    board = folder.ok() ? make_file(folder->get()) : folder.error();
  }
  if (!board) return board.error();
  const auto given_up = [&](const char* call, int problem) {
    (void)unlinkat(folder->get(), std::to_string(getpid()).c_str(), 0);
    return status::from_errno(problem, fmt::format("{} {} of {}", call, bytes, name_of(getpid())));
  };
  // Room is taken now: a page that finds none later would end the process (SIGBUS).
  if (const int problem = posix_fallocate(board->get(), 0, static_cast<off_t>(bytes)); problem != 0) return given_up("reserve", problem);
  struct stat facts {};
  if (fstat(board->get(), &facts) != 0) return given_up("fstat", errno);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board->get(), 0);
  if (data == MAP_FAILED) return given_up("map", errno);
  const std::lock_guard guard(lock_);
  made_ = {getpid(), facts.st_dev, facts.st_ino};
  return shared_region(static_cast<std::byte*>(data), bytes);
}

void linux_board_folder::remove() noexcept {
  const std::lock_guard guard(lock_);
  if (made_.pid != getpid()) return;  // a child's parent's
  try {
    const auto folder = open_folder();
    if (!folder) return;
    const auto pid = std::to_string(made_.pid);
    struct stat facts {};
    const bool own = fstatat(folder->get(), pid.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 && facts.st_dev == made_.device &&
                     facts.st_ino == made_.inode;
    if (own && unlinkat(folder->get(), pid.c_str(), 0) == 0) (void)rmdir(name_.c_str());  // where it was the last
  } catch (const std::bad_alloc&) {                                                       // it is removed as one of a process that is gone
  }
  made_ = {};
}

result<std::vector<int>> linux_board_folder::list() {
  const auto folder = open_folder();
  if (!folder && folder.error().code() == errc::not_found) return std::vector<int>();
  if (!folder) return folder.error();
  const std::unique_ptr<DIR, closing_folder> entries(opendir(fmt::format("/proc/self/fd/{}", folder->get()).c_str()));
  if (entries == nullptr) return status::from_errno(errno, fmt::format("list {}", name_));
  std::vector<int> found;
  while (const auto* entry = readdir(entries.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of this call's own
    const std::string_view text = entry->d_name;
    int pid = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (problem == std::errc() && end == text.data() + text.size() && pid > 0) found.push_back(pid);
  }
  std::sort(found.begin(), found.end());
  return found;
}

status linux_board_folder::read_whole(int fd, std::span<std::byte> into, const std::string& name) {
  for (std::size_t done = 0; done < into.size();) {
    const auto count = pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("read {}", name));
    if (count == 0) return {errc::invalid_argument, fmt::format("{} is cut off after {} bytes of {}", name, done, into.size())};
    done += static_cast<std::size_t>(count);
  }
  return {};
}

status linux_board_folder::read(int pid, std::span<std::byte> into) {
  const auto board = open_board(pid, O_RDONLY);
  if (!board) return board.error();
  struct stat facts {};
  if (fstat(board->get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}", name_of(pid)));
  if (static_cast<std::uint64_t>(facts.st_size) != into.size())
    return {errc::invalid_argument, fmt::format("{} has {} bytes, not {}", name_of(pid), facts.st_size, into.size())};
  return read_whole(board->get(), into, name_of(pid));
}

result<std::size_t> linux_board_folder::read_start(int pid, std::span<std::byte> into) {
  const auto board = open_board(pid, O_RDONLY);
  if (!board) return board.error();
  const auto count = pread(board->get(), into.data(), into.size(), 0);
  if (count < 0) return status::from_errno(errno, fmt::format("read {}", name_of(pid)));
  return static_cast<std::size_t>(count);
}

// The words are read and written as a file's, and only their address is given to the kernel: who cuts the file off meanwhile gets an error
// to this process, not a signal.
status linux_board_folder::ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) {
  const auto board = open_board(pid, O_RDWR);
  if (!board) return board.error();
  const auto word_at = [&](std::size_t offset, std::uint32_t& value) {
    return pread(board->get(), &value, sizeof value, static_cast<off_t>(offset)) == sizeof value;
  };
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::uint32_t wanted = 0;
  if (asked >= page || !word_at(asked, wanted)) return {errc::invalid_argument, fmt::format("{} is cut off", name_of(pid))};
  void* mapped = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, board->get(), 0);
  if (mapped == MAP_FAILED) return status::from_errno(errno, fmt::format("map {}", name_of(pid)));
  const shared_region words(static_cast<std::byte*>(mapped), page);
  // Added by the kernel, in one step: a sum that was written might take back what others have added meanwhile, and then whoever sleeps on
  // the word misses that it was told to end.
  constexpr std::uint32_t add_one = std::uint32_t{FUTEX_OP_ADD} << 28 | 1U << 12;
  const auto* word = words.data() + asked;
  if (syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, 0L, word, add_one) < 0)
    return status::from_errno(errno, fmt::format("ask through {}", name_of(pid)));
  if (!word_at(asked, wanted)) return {errc::invalid_argument, fmt::format("{} is cut off", name_of(pid))};
  const auto until = std::chrono::steady_clock::now() + most;
  for (std::uint32_t seen = 0; word_at(answered, seen);) {
    if (static_cast<std::int32_t>(seen - wanted) >= 0) return {};
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return {errc::timed_out, fmt::format("process {} does not answer", pid)};
}

// By the number of the file, and not by its name, which depends on who looks from where.
bool linux_board_folder::is_mapped_by(int pid) noexcept {
  try {
    const auto board = open_board(pid, O_RDONLY);
    struct stat facts {};
    if (!board || fstat(board->get(), &facts) != 0) return true;
    const auto maps = maps_of(pid);
    return maps.empty() || maps.find(fmt::format(" {} ", facts.st_ino)) != std::string::npos;
  } catch (const std::bad_alloc&) {
    return true;
  }
}

void linux_board_folder::note_gone(int pid) noexcept {
  try {
    const auto folder = open_folder();
    if (!folder) return;
    const auto name = std::to_string(pid);
    struct stat facts {};
    if (fstatat(folder->get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (S_ISREG(facts.st_mode) && (facts.st_mode & 0777) != gone_mode) {
      const timespec times[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
      if (const auto board = open_board(pid, O_RDONLY); board.ok()) {
        (void)futimens(board->get(), times);
        (void)fchmod(board->get(), gone_mode);
      }
    } else if (!S_ISREG(facts.st_mode) || std::time(nullptr) - facts.st_mtim.tv_sec > kept_for.count()) {
      (void)unlinkat(folder->get(), name.c_str(), 0);
    }
  } catch (const std::bad_alloc&) {  // another time
  }
}

void linux_board_folder::tidy(std::span<const int> gone) noexcept {
  if (gone.size() <= most_kept) return;
  try {
    const auto folder = open_folder();
    if (!folder) return;
    std::vector<std::pair<std::int64_t, int>> by_age;
    for (const int pid : gone) {
      struct stat facts {};
      if (fstatat(folder->get(), std::to_string(pid).c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
      by_age.emplace_back(std::int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec, pid);
    }
    std::sort(by_age.begin(), by_age.end());
    for (std::size_t i = 0; i + most_kept < by_age.size(); ++i) (void)unlinkat(folder->get(), std::to_string(by_age[i].second).c_str(), 0);
  } catch (const std::bad_alloc&) {  // another time
  }
}

}  // namespace

std::shared_ptr<board_folder> make_board_folder(const std::string& parent) { return std::make_shared<linux_board_folder>(parent); }

void sleep_on_shared(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept { (void)futex(&word, FUTEX_WAIT, value); }

void wake_shared(std::atomic<std::uint32_t>& word) noexcept { (void)futex(&word, FUTEX_WAKE, INT_MAX); }

}  // namespace penstock::sys
