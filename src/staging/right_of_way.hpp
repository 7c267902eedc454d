// Who goes first on one file system: what somebody waits for, before what is done in the background. Those who begin normal works say so;
// the lanes of the background ask before each work that they take. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::staging {

// Is told when works in the background had to let others go first. Any thread; by the clock of std::chrono::steady_clock.
class background_waits {
 public:
  virtual void let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept = 0;

 protected:
  ~background_waits() = default;
};

class right_of_way {
 public:
  // Nothing normal may have been under way for so long: between two requests of one caller, who waits for each, nobody starts.
  static constexpr std::chrono::nanoseconds quiet = std::chrono::milliseconds(1);
  // One work is taken each time, whatever else is under way: a request in the background ends.
  static constexpr std::chrono::nanoseconds pace = std::chrono::milliseconds(20);

  // told: null for nobody; outlives this.
  explicit right_of_way(background_waits* told = nullptr) noexcept : told_(told) {}

  // So many normal works begin, or have ended.
  void enter(std::uint64_t works = 1) noexcept { begun_.fetch_add(works); }
  void leave(std::uint64_t works = 1) noexcept { ended_.fetch_add(works); }
  // A request in the background begins, or has ended. Only meanwhile the others need to say what they do.
  void begin_background() noexcept { background_.fetch_add(1, std::memory_order_relaxed); }
  void end_background() noexcept { background_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] bool is_asked() const noexcept { return background_.load(std::memory_order_relaxed) > 0; }

  // Whether a work in the background may be taken at this time of std::chrono::steady_clock; true counts as having taken it.
  bool may_take(std::int64_t now_ns) noexcept;

 private:
  background_waits* const told_;
  alignas(64) std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> ended_{0};
  alignas(64) std::atomic<std::uint64_t> background_{0};
  spin_lock lock_;  // guards what follows
  std::uint64_t seen_ = 0;
  std::int64_t busy_ns_ = 0;   // when normal works were last seen
  std::int64_t taken_ns_ = 0;  // when a work was last taken
  std::int64_t waits_since_ns_ = 0;
};

// A normal work that the calling thread carries itself, as long as this lives. Costs nothing where nothing is in the background.
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
