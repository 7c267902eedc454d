// Measures whether other processes keep the machine's cores busy. If they do, the engine lets the GPU copy whatever it can by itself. That
// is faster than using threads that wait for a core, and leaves more of the cores to the other processes. On an H200 machine with 16 cores:
// 38 GB/s at 0.026 CPU s/GB instead of 30 GB/s at 0.168 if others use 8 cores; 22 GB/s instead of 18 if they use all 16. Thread-safe.
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
  // The threshold once the cores count as busy.
  static constexpr double least_share_then = 0.3;
  // Time between two measurements. Each one covers the time since the previous one.
  static constexpr std::int64_t between_looks_ns = 1'000'000'000;

  // Measures again if enough time has passed, and returns the latest result, which is false at first. own_cores: the number of cores
  // available to this process. If that is not all of them, the result is always false, because the kernel's figures cover all cores.
  // now_ns: from a monotonic clock.
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
