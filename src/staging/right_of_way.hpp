// Decides which work on one file system goes first: work that a caller waits for comes before background work. Threads that start normal
// work report it. Background lanes ask before they take each work item. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::staging {

// Receives the periods in which background work had to wait for normal work. Called on any thread, with times from
// std::chrono::steady_clock.
class background_waits {
 public:
  virtual void let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept = 0;

 protected:
  ~background_waits() = default;
};

class right_of_way {
 public:
  // Background work starts only after this long without normal work, because a caller that waits for each of its requests pauses between
  // them.
  static constexpr std::chrono::nanoseconds quiet = std::chrono::milliseconds(1);
  // One background work item starts in each such period, regardless of other activity, so that background requests complete.
  static constexpr std::chrono::nanoseconds pace = std::chrono::milliseconds(20);

  // told: may be null; must outlive this object.
  explicit right_of_way(background_waits* told = nullptr) noexcept : told_(told) {}

  // Report that normal work items start, or have completed.
  void enter(std::uint64_t works = 1) noexcept { begun_.fetch_add(works); }
  void leave(std::uint64_t works = 1) noexcept { ended_.fetch_add(works); }
  // Report that a background request starts, or has completed. Normal work must be reported only in between.
  void begin_background() noexcept { background_.fetch_add(1, std::memory_order_relaxed); }
  void end_background() noexcept { background_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool is_asked() const noexcept { return background_.load(std::memory_order_relaxed) > 0; }

  // Returns true if a background work item may be taken at this time on std::chrono::steady_clock. If true, the item is recorded as taken.
  bool may_take(std::int64_t now_ns) noexcept;

 private:
  background_waits* const told_;
  alignas(64) std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> ended_{0};
  alignas(64) std::atomic<std::uint64_t> background_{0};
  spin_lock lock_;  // guards the members below
  std::uint64_t seen_ = 0;
  std::int64_t busy_ns_ = 0;   // when normal work was last seen
  std::int64_t taken_ns_ = 0;  // when a work item was last taken
  std::int64_t waits_since_ns_ = 0;
};

// Reports normal work of the calling thread during its own lifetime. Costs nothing if there are no background requests.
class going_first {
 public:
  explicit going_first(right_of_way& way) noexcept : way_(way.is_asked() ? &way : nullptr) {
    if (way_ != nullptr) way_->enter();
  }
  going_first(const going_first&) = delete;
  going_first& operator=(const going_first&) = delete;
  ~going_first() {
    if (way_ != nullptr) way_->leave();
  }

 private:
  right_of_way* const way_;
};

}  // namespace penstock::staging
