#include "sys/kept_descriptors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/no_memory.hpp"

namespace penstock::sys {
namespace {

// The number of kept descriptors that each close() checks.
constexpr std::size_t looks_per_close = 16;
// The number of free entries that are always reserved, unless memory has run out.
constexpr std::size_t room_ahead = 32;

// Returns true if closing fd could drop a lock. F_OFD_GETLK (Linux 3.15) queries on behalf of the descriptor, which holds no lock, so
// unlike F_GETLK it also reports this process's locks. It reports other processes' locks too, and these may hide one of ours.
bool may_drop_locks(int fd) noexcept {
  struct flock asked {};
  asked.l_type = F_WRLCK;
  asked.l_whence = SEEK_SET;  // start and length 0: the whole file
  if (fcntl(fd, F_OFD_GETLK, &asked) == 0) return asked.l_type != F_UNLCK;
  switch (errno) {
    case EBADF:
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EPERM:
      return false;  // the file cannot be locked, or the query is forbidden
    default:
      return true;
  }
}

int close_once(int fd) noexcept {
  // Never retried: Linux frees the descriptor even when it reports an error, and another thread may be using the number by now.
  return ::close(fd) == 0 || errno == EINTR ? 0 : errno;
}

constexpr int flags_that_matter = O_ACCMODE | O_DIRECT | O_SYNC | O_DSYNC | O_NOATIME | O_APPEND;

}  // namespace

kept_descriptors::kept_descriptors() { kept_.reserve(2 * room_ahead); }

kept_descriptors::~kept_descriptors() {
  for (const auto& each : kept_) {
    if (fork_guard_.forked() || !may_drop_locks(each.fd)) (void)close_once(each.fd);
  }
}

int kept_descriptors::close(int fd) {
  if (fork_guard_.forked()) return close_once(fd);
  if (may_drop_locks(fd)) return keep(fd);
  const int outcome = close_once(fd);
  if (count_.load() != 0) close_released();
  return outcome;
}

int kept_descriptors::keep(int fd) {
  const auto what = identify(fd, fcntl(fd, F_GETFL));
  if (!what) return 0;
  const std::lock_guard guard(lock_);
  make_room();
  if (kept_.size() == kept_.capacity()) return ENOMEM;
  kept_.push_back({*what, fd});
  count_.store(kept_.size());
  return 0;
}

// Reserves memory in advance: once memory has run out, a descriptor must not be closed, because that could drop locks, and must not leak
// either.
void kept_descriptors::make_room() noexcept {
  if (kept_.capacity() - kept_.size() >= room_ahead) return;
  (void)or_no_memory([&] {
    kept_.reserve(2 * kept_.capacity());
    return status();
  });
}

std::optional<int> kept_descriptors::take(int fd, int flags) {
  if (count_.load() == 0 || fork_guard_.forked()) return std::nullopt;
  const auto wanted = identify(fd, flags);
  return wanted ? take(*wanted) : std::nullopt;
}

std::optional<int> kept_descriptors::take(const std::string& path, int flags) {
  if (count_.load() == 0 || fork_guard_.forked()) return std::nullopt;
  // O_PATH does not open the file, so closing it cannot drop a lock.
  const int place = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (place < 0) return std::nullopt;
  const auto wanted = identify(place, flags);
  ::close(place);
  return wanted ? take(*wanted) : std::nullopt;
}

std::optional<int> kept_descriptors::take(const identity& wanted) {
  const std::lock_guard guard(lock_);
  // A duplicate shares its flags with the program's own descriptor, so the program may have changed them.
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const entry& each) {
    return each.what == wanted && (fcntl(each.fd, F_GETFL) & flags_that_matter) == wanted.flags;
  });
  if (found == kept_.end()) return std::nullopt;
  const int fd = found->fd;
  kept_.erase(found);
  count_.store(kept_.size());
  return fd;
}

std::optional<kept_descriptors::identity> kept_descriptors::identify(int fd, int flags) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return std::nullopt;
  return identity{facts.st_dev, facts.st_ino, flags & flags_that_matter};
}

void kept_descriptors::close_released() {
  const std::lock_guard guard(lock_);
  for (std::size_t looks = std::min(looks_per_close, kept_.size()); looks > 0; --looks) {
    if (next_look_ >= kept_.size()) next_look_ = 0;
    if (may_drop_locks(kept_[next_look_].fd)) {
      ++next_look_;
      continue;
    }
    (void)close_once(kept_[next_look_].fd);
    kept_[next_look_] = kept_.back();
    kept_.pop_back();
  }
  count_.store(kept_.size());
}

}  // namespace penstock::sys
