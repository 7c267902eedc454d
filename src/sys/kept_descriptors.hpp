// Closes files without losing the program's record locks. POSIX ties these locks to the process and the file: closing any descriptor of a
// file drops all of them (fcntl(2), "Advisory record locking"), even those taken through another descriptor. So a descriptor is closed only
// if no process holds a lock on its file. Until then it is kept, and reused when the same file is opened in the same mode. Owned by the
// kernel object; thread-safe.
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
  // Closes the descriptors whose files are not locked; the rest stay open until the process exits.
  ~kept_descriptors();

  // Closes fd or keeps it. Also checks a few kept descriptors, and closes those whose files are no longer locked; a small number keeps each
  // call cheap. Returns 0 or an errno. If memory has run out, at least 32 more descriptors can be kept; after that the call returns ENOMEM,
  // and fd stays open and owned by the caller. As with close(2), a lock that another thread takes at the same time can be lost. A forked
  // child holds no locks and simply closes fd.
  int close(int fd);
  // Returns a kept descriptor for the file that fd (or path) refers to, opened with the same flags as far as they matter for a transfer.
  // The caller takes ownership.
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
  std::mutex lock_;  // guards kept_ and next_look_
  std::vector<entry> kept_;
  std::size_t next_look_ = 0;          // index of the next descriptor to check
  std::atomic<std::size_t> count_{0};  // size of kept_; nearly always 0, in which case nothing is checked
};

}  // namespace penstock::sys
