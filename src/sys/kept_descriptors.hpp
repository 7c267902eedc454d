// Closing a file without losing the program's record locks on it. POSIX ties such a lock to the process and the file: closing any
// descriptor of the file drops all of them (fcntl(2), "Advisory record locking"), also those that the program took through another. So a
// descriptor is closed only while nobody holds a lock on its file; until then it is kept, and used again when the same file is opened the
// same way. Owned by the kernel; thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sys/fork_guard.hpp"

namespace penstock::sys {

class kept_descriptors {
 public:
  kept_descriptors();
  kept_descriptors(const kept_descriptors&) = delete;
  kept_descriptors& operator=(const kept_descriptors&) = delete;
  // Closes those whose files are free of locks; the others stay open for as long as the process lives.
  ~kept_descriptors();

  // Closes fd or keeps it, and closes what was kept and is free by now (a few of them, so that closing stays cheap). Returns 0 or an errno.
  // While memory has run out there is room for at least 32 more to be kept; then ENOMEM, and fd stays open and the caller's.
  // A lock that another thread takes at this very moment can be lost, as with close(2). A forked child holds no locks, and just closes.
  int close(int fd);
  // A kept descriptor of the file behind fd (or of that name) that was opened with these flags, as far as they matter to a transfer.
  // It belongs to the caller from then on.
  std::optional<int> take(int fd, int flags);
  std::optional<int> take(const std::string& path, int flags);

 private:
  struct identity {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    int flags = 0;
    bool operator==(const identity&) const = default;
  };
  struct entry {
    identity what;
    int fd;
  };

  static std::optional<identity> identify(int fd, int flags);
  int keep(int fd);
  void make_room() noexcept;
  std::optional<int> take(const identity& wanted);
  void close_released();

  fork_guard fork_guard_;
  std::mutex lock_;  // guards the two that follow
  std::vector<entry> kept_;
  std::size_t next_look_ = 0;          // which of them is asked about next
  std::atomic<std::size_t> count_{0};  // of kept_: in nearly every process it stays 0, and nothing is asked
};

}  // namespace penstock::sys
