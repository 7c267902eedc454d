#include "sys/board_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/file_size_limit.hpp"
#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

// The mode of a file whose process has exited. The file's modification time records when that was noticed.
constexpr mode_t gone_mode = 0400;

long futex(const void* word, int operation, std::uint32_t value) { return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0); }

// Returns the text of /proc/PID/maps; empty if it is not readable.
std::string maps_of(int pid) {
  std::string maps;
  owned_descriptor from(open(fmt::format("/proc/{}/maps", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (from.get() < 0) return maps;
  char part[4096];
  for (ssize_t count = 0; (count = ::read(from.get(), part, sizeof part)) > 0;) maps.append(part, static_cast<std::size_t>(count));
  return maps;
}

// Returns true if one of the lines describes an attached segment with this number. The kernel shows the number in the inode column.
bool has_attached(std::string_view maps, int segment) {
  const auto number = fmt::format(" {} ", segment);
  while (!maps.empty()) {
    const auto line = maps.substr(0, maps.find('\n'));
    if (line.find("/SYSV") != std::string_view::npos && line.find(number) != std::string_view::npos) return true;
    maps.remove_prefix(std::min(maps.size(), line.size() + 1));
  }
  return false;
}

void remove_segment(int segment) noexcept { (void)shmctl(segment, IPC_RMID, nullptr); }

// Attaches a segment. It stays complete until it is detached, whatever other processes do.
result<shared_region> attach(int segment, int flags, const std::string& name) {
  void* const data = shmat(segment, nullptr, flags);
  if (data == reinterpret_cast<void*>(-1)) {
    const int problem = errno;
    if (problem == EINVAL || problem == EIDRM)
      return status(errc::invalid_argument, fmt::format("the memory that {} refers to no longer exists", name));
    return status::from_errno(problem, fmt::format("attach the memory that {} refers to", name));
  }
  shmid_ds facts{};
  if (shmctl(segment, IPC_STAT, &facts) != 0) {
    const int problem = errno;
    (void)shmdt(data);
    return status::from_errno(problem, fmt::format("query the memory that {} refers to", name));
  }
  shared_region memory(static_cast<std::byte*>(data), facts.shm_segsz);
  if (facts.shm_perm.uid != geteuid())
    return status(errc::permission_denied, fmt::format("the memory that {} refers to belongs to a different user", name));
  return memory;
}

// Returns the mark for boards in a folder with this name: an FNV-1a hash with our own start value, so that no other program's memory has
// the mark by chance.
std::uint64_t mark_for(std::string_view folder) noexcept {
  std::uint64_t mark = 0x70656e73746f636b;  // "penstock"
  for (const char each : folder) mark = (mark ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  return mark;
}

// Returns the segment's mark; 0 if it has none.
std::uint64_t mark_of(const shared_region& memory) noexcept {
  std::uint64_t mark = 0;
  if (memory.size() > sizeof mark) std::memcpy(&mark, memory.data() + memory.size() - sizeof mark, sizeof mark);
  return mark;
}

struct closing_folder {
  void operator()(DIR* folder) const noexcept { closedir(folder); }
};

class linux_board_folder final : public board_folder {
 public:
  explicit linux_board_folder(const std::string& parent) : name_(fmt::format("{}/penstock-{}", parent, geteuid())) {}

  result<shared_region> make(std::size_t bytes) override;
  status publish(std::span<const std::byte> start) override;
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
  [[nodiscard]] result<owned_descriptor> make_folder() const;
  result<owned_descriptor> make_file(int folder) const;
  status write_file(std::span<const std::byte> content);
  [[nodiscard]] bool made_by_a_copy() const;
  // The contents of a board's file.
  struct entry {
    std::vector<std::byte> start;
    int segment = -1;
  };
  [[nodiscard]] result<entry> entry_of(int pid) const;
  result<shared_region> attach_board(int pid, int flags) const;
  void discard(int folder, int pid) const noexcept;
  void remove_orphans();

  const std::string name_;
  const std::uint64_t mark_ = mark_for(name_);
  std::mutex lock_;  // guards made_
  struct {
    int pid = 0;
    int segment = -1;
    std::uint64_t device = 0, inode = 0;  // 0: not published
  } made_;
};

result<owned_descriptor> linux_board_folder::open_folder() const {
  owned_descriptor folder(open(name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0) {
    const int problem = errno;
    if (problem == ELOOP || problem == ENOTDIR) return status(errc::permission_denied, fmt::format("{} exists but is not a folder", name_));
    return status::from_errno(problem, fmt::format("open {}", name_));
  }
  struct stat facts {};
  if (fstat(folder.get(), &facts) != 0) return status::from_errno(errno, fmt::format("fstat {}", name_));
  if (facts.st_uid != geteuid())
    return status(errc::permission_denied,
                  fmt::format("{} belongs to user {}, but this process runs as user {}", name_, facts.st_uid, geteuid()));
  if ((facts.st_mode & 077) != 0)
    return status(errc::permission_denied,
                  fmt::format("{} is accessible to other users (mode {:o}; expected 700)", name_, facts.st_mode & 07777));
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
    return status(errc::permission_denied, fmt::format("{} is not a regular file owned by this user", name_of(pid)));
  return board;
}

// If the process contains two copies of this library (from a wheel and from the system), only one can have the board.
bool linux_board_folder::made_by_a_copy() const {
  const auto found = entry_of(getpid());
  return found && has_attached(maps_of(getpid()), found->segment);
}

result<owned_descriptor> linux_board_folder::make_file(int folder) const {
  const auto pid = std::to_string(getpid());
  for (int tries = 0;; ++tries) {
    owned_descriptor board(openat(folder, pid.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (board.get() >= 0) (void)fchmod(board.get(), 0600);  // regardless of the umask
    if (board.get() >= 0) return board;
    const int problem = errno;
    if (problem != EEXIST || tries == 3) return status::from_errno(problem, fmt::format("create {}", name_of(getpid())));
    if (made_by_a_copy())
      return status(errc::unsupported, fmt::format("another copy of Penstock in this process already uses {}", name_of(getpid())));
    discard(folder, getpid());
  }
}

result<owned_descriptor> linux_board_folder::make_folder() const {
  if (mkdir(name_.c_str(), 0700) == 0) {
    (void)chmod(name_.c_str(), 0700);  // regardless of the umask: this user's later processes use the folder too
  } else if (errno != EEXIST) {
    return status::from_errno(errno, fmt::format("create the folder {}", name_));
  }
  return open_folder();
}

result<shared_region> linux_board_folder::make(std::size_t bytes) {
  if (const auto folder = make_folder(); !folder && folder.error().code() != errc::not_found) return folder.error();
  const std::lock_guard guard(lock_);
  const int segment = shmget(IPC_PRIVATE, bytes + mark_bytes, IPC_CREAT | 0600);
  if (segment < 0) return status::from_errno(errno, fmt::format("allocate {} bytes of shared memory", bytes));
  auto memory = attach(segment, 0, name_of(getpid()));
  if (!memory) {
    remove_segment(segment);
    return memory.error();
  }
  std::memcpy(memory->data() + bytes, &mark_, sizeof mark_);
  made_ = {getpid(), segment};
  return memory;
}

status linux_board_folder::publish(std::span<const std::byte> start) {
  std::vector<std::byte> content(start.size() + sizeof(segment_number));
  const std::lock_guard guard(lock_);
  const segment_number segment = made_.segment;
  std::memcpy(content.data(), start.data(), start.size());
  std::memcpy(content.data() + start.size(), &segment, sizeof segment);
  auto written = write_file(content);
  if (!written.ok()) remove_segment(std::exchange(made_, {}).segment);
  if (written.ok()) remove_orphans();
  return written;
}

// Removes boards that belong to this folder but that no process has attached and no file refers to. They remain if a user deletes the
// files of killed processes.
void linux_board_folder::remove_orphans() {
  constexpr int most_looked_at = 4096;
  const auto pids = list();
  if (!pids) return;
  std::vector<int> told_of;
  for (const int pid : *pids) {
    if (const auto named = entry_of(pid)) told_of.push_back(named->segment);
  }
  shm_info all{};
  const int last = shmctl(0, SHM_INFO, reinterpret_cast<shmid_ds*>(&all));
  for (int i = 0; i <= std::min(last, most_looked_at); ++i) {
    shmid_ds facts{};
    const int segment = shmctl(i, SHM_STAT, &facts);
    if (segment < 0 || facts.shm_perm.uid != geteuid() || facts.shm_nattch > 0) continue;
    if (std::ranges::find(told_of, segment) != told_of.end()) continue;
    if (const auto memory = attach(segment, SHM_RDONLY, name_); memory && mark_of(*memory) == mark_) remove_segment(segment);
  }
}

// Called with the lock held.
status linux_board_folder::write_file(std::span<const std::byte> content) {
  result<owned_descriptor> folder = status(errc::not_found, name_);
  result<owned_descriptor> board = status(errc::not_found, name_);
  // Another process may concurrently remove the folder if its board was the last one.
  for (int tries = 0; tries < 5 && board.error().code() == errc::not_found; ++tries) {
    folder = make_folder();
    board = folder.ok() ? make_file(folder->get()) : folder.error();
  }
  if (!board) return board.error();
  errno = EFBIG;
  const auto put = !fits_file_size_limit(content.size())
                       ? ssize_t{-1}
                       : uninterrupted([&] { return pwrite(board->get(), content.data(), content.size(), 0); });
  struct stat facts {};
  if (put != static_cast<ssize_t>(content.size()) || fstat(board->get(), &facts) != 0) {
    const int problem = put >= 0 && put != static_cast<ssize_t>(content.size()) ? ENOSPC : errno;
    (void)unlinkat(folder->get(), std::to_string(getpid()).c_str(), 0);
    return status::from_errno(problem, fmt::format("write {}", name_of(getpid())));
  }
  made_.device = facts.st_dev;
  made_.inode = facts.st_ino;
  return {};
}

void linux_board_folder::remove() noexcept {
  const std::lock_guard guard(lock_);
  if (made_.pid != getpid()) return;  // the board belongs to the parent of this forked child
  remove_segment(made_.segment);
  try {
    const auto folder = open_folder();
    if (!folder) return;
    const auto pid = std::to_string(made_.pid);
    struct stat facts {};
    const bool own = fstatat(folder->get(), pid.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 && facts.st_dev == made_.device &&
                     facts.st_ino == made_.inode;
    if (own && unlinkat(folder->get(), pid.c_str(), 0) == 0) (void)rmdir(name_.c_str());  // if this was the last board
  } catch (const std::bad_alloc&) {  // another process removes it later, as it does for a process that has exited
  }
  made_ = {};
}

// Removes a board's file. Also removes the memory it refers to if that is a board: the file may contain an arbitrary number.
void linux_board_folder::discard(int folder, int pid) const noexcept {
  try {
    if (const auto named = entry_of(pid); named && attach_board(pid, SHM_RDONLY).ok()) remove_segment(named->segment);
  } catch (const std::bad_alloc&) {  // the memory stays
  }
  (void)unlinkat(folder, std::to_string(pid).c_str(), 0);
}

result<std::vector<int>> linux_board_folder::list() {
  const auto folder = open_folder();
  if (!folder && folder.error().code() == errc::not_found) return std::vector<int>();
  if (!folder) return folder.error();
  const std::unique_ptr<DIR, closing_folder> entries(opendir(fmt::format("/proc/self/fd/{}", folder->get()).c_str()));
  if (entries == nullptr) return status::from_errno(errno, fmt::format("list {}", name_));
  std::vector<int> found;
  while (const auto* entry = readdir(entries.get())) {  // NOLINT(concurrency-mt-unsafe): the stream belongs to this call
    const std::string_view text = entry->d_name;
    int pid = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (problem == std::errc() && end == text.data() + text.size() && pid > 0) found.push_back(pid);
  }
  std::sort(found.begin(), found.end());
  return found;
}

result<linux_board_folder::entry> linux_board_folder::entry_of(int pid) const {
  const auto board = open_board(pid, O_RDONLY);
  if (!board) return board.error();
  entry found;
  found.start.resize(most_start_bytes + sizeof(segment_number) + 1);
  const auto count = uninterrupted([&] { return pread(board->get(), found.start.data(), found.start.size(), 0); });
  if (count < 0) return status::from_errno(errno, fmt::format("read {}", name_of(pid)));
  const auto bytes = static_cast<std::size_t>(count);
  segment_number segment = 0;
  if (bytes <= sizeof segment || bytes == found.start.size())
    return status(errc::invalid_argument, fmt::format("{} is not a board: its size is {} bytes", name_of(pid), bytes));
  found.start.resize(bytes - sizeof segment);
  std::memcpy(&segment, found.start.data() + found.start.size(), sizeof segment);
  if (segment < 0 || segment > INT_MAX) return status(errc::invalid_argument, fmt::format("{} does not refer to any memory", name_of(pid)));
  found.segment = static_cast<int>(segment);
  return found;
}

// Attaches a board. Its memory must begin with the contents of its file.
result<shared_region> linux_board_folder::attach_board(int pid, int flags) const {
  const auto named = entry_of(pid);
  if (!named) return named.error();
  auto memory = attach(named->segment, flags, name_of(pid));
  if (!memory) return memory;
  const auto& start = named->start;
  if (memory->size() < start.size() + mark_bytes || mark_of(*memory) != mark_ ||
      std::memcmp(memory->data(), start.data(), start.size()) != 0)
    return status(errc::invalid_argument, fmt::format("the memory that {} refers to is not a board", name_of(pid)));
  return memory;
}

status linux_board_folder::read(int pid, std::span<std::byte> into) {
  const auto board = attach_board(pid, SHM_RDONLY);
  if (!board) return board.error();
  if (const auto bytes = board->size() - mark_bytes; bytes != into.size())
    return {errc::invalid_argument,
            fmt::format("the memory that {} refers to is {} bytes long; expected {}", name_of(pid), bytes, into.size())};
  std::memcpy(into.data(), board->data(), into.size());
  return {};
}

result<std::size_t> linux_board_folder::read_start(int pid, std::span<std::byte> into) {
  const auto named = entry_of(pid);
  if (!named) return named.error();
  const auto count = std::min(into.size(), named->start.size());
  std::memcpy(into.data(), named->start.data(), count);
  return count;
}

status linux_board_folder::ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) {
  const auto board = attach_board(pid, 0);
  if (!board) return board.error();
  using word = std::atomic<std::uint32_t>;
  if (std::max(asked, answered) + sizeof(word) > board->size())
    return {errc::invalid_argument, fmt::format("the memory that {} refers to is too small", name_of(pid))};
  auto& question = *reinterpret_cast<word*>(board->data() + asked);
  const auto& answer = *reinterpret_cast<const word*>(board->data() + answered);
  const auto wanted = question.fetch_add(1) + 1;
  wake_shared(question);
  const auto until = std::chrono::steady_clock::now() + most;
  while (static_cast<std::int32_t>(answer.load(std::memory_order_acquire) - wanted) < 0) {
    if (std::chrono::steady_clock::now() >= until) return {errc::timed_out, fmt::format("process {} did not respond in time", pid)};
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return {};
}

bool linux_board_folder::is_mapped_by(int pid) noexcept {
  try {
    const auto named = entry_of(pid);
    if (!named) return true;
    const auto maps = maps_of(pid);
    return maps.empty() || has_attached(maps, named->segment);
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
      discard(folder->get(), pid);
    }
  } catch (const std::bad_alloc&) {  // a later call tries again
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
    for (std::size_t i = 0; i + most_kept < by_age.size(); ++i) discard(folder->get(), by_age[i].second);
  } catch (const std::bad_alloc&) {  // a later call tries again
  }
}

}  // namespace

std::shared_ptr<board_folder> make_board_folder(const std::string& parent) { return std::make_shared<linux_board_folder>(parent); }

void sleep_on_shared(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept { (void)futex(&word, FUTEX_WAIT, value); }

void wake_shared(std::atomic<std::uint32_t>& word) noexcept { (void)futex(&word, FUTEX_WAKE, INT_MAX); }

}  // namespace penstock::sys
