// Measures whether other processes keep the machine's cores busy. If they do, the engine lets the GPU copy what it can by itself: that is
// faster than threads that wait for a core, and leaves more of the cores to the other processes (H200, 16 cores: 38 GB/s at 0.026 CPU s/GB
// instead of 30 at 0.168 if others use 8 of them; 22 GB/s instead of 18 if they use all 16). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "sys/kernel.hpp"

namespace penstock::core {

class busy_cores {
 public:
  // Below this share the CPU copies faster (44 GB/s instead of 29).
  static constexpr double least_share = 0.4;
  // The threshold while the cores already count as busy.
  static constexpr double least_share_then = 0.3;
  // Time between two measurements; each covers the time since the last one.
  static constexpr std::int64_t between_looks_ns = 1'000'000'000;

  // Measures again if it is time, and returns the latest result; false at first. own_cores: the number of cores that this process may use.
  // If it may not use all of them, the result is always false, because the kernel's figures cover all cores. now_ns: a clock that never
  // goes back.
  bool now(sys::kernel& kernel, unsigned own_cores, std::int64_t now_ns) noexcept {
    if (now_ns >= next_look_ns_.load(std::memory_order_relaxed)) look(kernel, own_cores, now_ns);
    return are_busy_.load(std::memory_order_relaxed);
  }

 private:
  void look(sys::kernel& kernel, unsigned own_cores, std::int64_t now_ns) noexcept {
    const std::unique_lock mine(lock_, std::try_to_lock);
    if (!mine) return;
    next_look_ns_.store(now_ns + between_looks_ns, std::memory_order_relaxed);
    const auto use = kernel.core_use_now();
    const auto share = sys::used_by_others(seen_, use);
    seen_ = use;
    const bool are_busy = are_busy_.load(std::memory_order_relaxed);
    are_busy_.store(share && use.cores <= own_cores && *share >= (are_busy ? least_share_then : least_share), std::memory_order_relaxed);
  }

  std::atomic<std::int64_t> next_look_ns_{0};
  std::atomic<bool> are_busy_{false};
  std::mutex lock_;  // guards seen_
  sys::core_use seen_;
};

}  // namespace penstock::core
