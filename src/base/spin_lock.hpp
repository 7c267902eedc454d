// A one-byte lock for critical sections of a few instructions. Taking a free lock makes no system call. Satisfies Lockable, for
// std::lock_guard and std::unique_lock. Neither recursive nor fair. Never hold it across a blocking call.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/cpu_pause.hpp"

namespace penstock {

class spin_lock {
 public:
  spin_lock() noexcept = default;
  spin_lock(const spin_lock&) = delete;
  spin_lock& operator=(const spin_lock&) = delete;

  void lock() noexcept {
    while (!try_lock()) wait_until_free();
  }

  [[nodiscard]] bool try_lock() noexcept { return !held_.exchange(true, std::memory_order_acquire); }

  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  // Spins with plain loads, which keep the cache line shared, then yields so that a preempted holder can run.
  void wait_until_free() const noexcept {
    constexpr int spins_before_yield = 100;
    for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
      if (spins < spins_before_yield) {
        cpu_pause();
      } else {
        sched_yield();
      }
    }
  }

  std::atomic<bool> held_{false};
};

}  // namespace penstock
