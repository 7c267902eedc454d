// Pages of the page cache that reads have registered with a driver stay so for a while, for the next read of the same file: registering a
// GiB takes 20 ms (in small folios 50), undoing it 8 (20), and copying from what is registered takes no CPU time. A thread of its own lets
// go of what nobody has read from for some seconds, of what exceeds the budget, and of all where memory is short; one after the other with
// pauses, since the driver lets no copy begin while it undoes one. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "path/pinned_pages.hpp"
#include "sys/fork_guard.hpp"

namespace penstock::path {

class kept_pages {
 public:
  using clock = std::chrono::steady_clock;
  // Nothing stays longer without being read from. A file that was deleted keeps its room on the disk so long, and its file system cannot be
  // unmounted.
  static constexpr std::chrono::milliseconds usual_idle{3000};

  // most_bytes(): what may be kept at the moment; asked on any thread. Both others outlive it.
  kept_pages(pinned_pages& all, const sys::fork_guard& fork, std::function<std::uint64_t()> most_bytes,
             std::chrono::milliseconds most_idle = usual_idle)
      : all_(all), fork_(fork), most_bytes_(std::move(most_bytes)), most_idle_(most_idle) {}
  kept_pages(const kept_pages&) = delete;
  kept_pages& operator=(const kept_pages&) = delete;
  ~kept_pages();  // nothing is kept any more

  // Keeps them, where there is room for them and a thread that will let go of them; false where there is not. Throws bad_alloc.
  [[nodiscard]] bool keep(const std::shared_ptr<pinned_pages::pages>& held);
  // Lets go of all that nobody reads from now. Returns whether there was something.
  bool trim() noexcept;

 private:
  using entry = std::shared_ptr<pinned_pages::entry>;

  [[nodiscard]] bool start();
  void loop();
  // The next to go: what was given up elsewhere; what has been idle for longest, if that is too long or more than most_bytes is kept.
  [[nodiscard]] std::vector<entry>::iterator next_to_go(std::uint64_t most_bytes) noexcept;
  // Of the list, with its lock held; it is unregistered with the lock open.
  void let_go(std::vector<entry>::iterator of, std::unique_lock<std::mutex>& guard) noexcept;

  pinned_pages& all_;
  const sys::fork_guard& fork_;
  const std::function<std::uint64_t()> most_bytes_;
  const std::chrono::milliseconds most_idle_;
  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  std::vector<entry> list_;
  std::uint64_t bytes_ = 0;  // of what is in there
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::path
