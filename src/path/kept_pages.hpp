// Keeps pages of the page cache registered with a driver for some time after a read, for the next read of the same file. Registering a GiB
// takes 20 ms (50 in small folios), unregistering it 8 (20), and copying from registered pages takes no CPU time. A thread unregisters
// pages that have not been read for some seconds or exceed the budget, and all pages if memory is short. It unregisters them one after
// another with pauses, because no copy can start while the driver unregisters. Thread-safe.
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
  // Pages that are not read are unregistered after this time. Until then, a deleted file continues to occupy disk space, and its file
  // system cannot be unmounted.
  static constexpr std::chrono::milliseconds usual_idle{3000};

  // most_bytes() returns the current limit on kept bytes, on any thread. all and fork must outlive this object.
  kept_pages(pinned_pages& all, const sys::fork_guard& fork, std::function<std::uint64_t()> most_bytes,
             std::chrono::milliseconds most_idle = usual_idle)
      : all_(all), fork_(fork), most_bytes_(std::move(most_bytes)), most_idle_(most_idle) {}
  kept_pages(const kept_pages&) = delete;
  kept_pages& operator=(const kept_pages&) = delete;
  ~kept_pages();  // unregisters everything

  // Keeps the pages if there is room and a thread that will unregister them. Otherwise returns false. Throws bad_alloc.
  [[nodiscard]] bool keep(const std::shared_ptr<pinned_pages::pages>& held);
  // Unregisters all pages that no read is using. Returns true if there were any.
  bool trim() noexcept;
  // Unregisters everything and ends the thread. keep() starts it again. No read may be in progress.
  void rest() noexcept;

 private:
  using entry = std::shared_ptr<pinned_pages::entry>;

  [[nodiscard]] bool start();
  void loop();
  // Returns the next entry to unregister: one that was dropped elsewhere, or else the one idle for longest, if it has been idle for too
  // long or more than most_bytes are kept.
  [[nodiscard]] std::vector<entry>::iterator next_to_go(std::uint64_t most_bytes) noexcept;
  // Removes the entry with the list's lock held, then unregisters it without the lock.
  void let_go(std::vector<entry>::iterator of, std::unique_lock<std::mutex>& guard) noexcept;

  pinned_pages& all_;
  const sys::fork_guard& fork_;
  const std::function<std::uint64_t()> most_bytes_;
  const std::chrono::milliseconds most_idle_;
  std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  std::vector<entry> list_;
  std::uint64_t bytes_ = 0;  // total of the entries in list_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::path
