// Whether other processes keep the machine's cores busy: then the GPU copies what it can by itself, faster than threads that wait for a
// core, and takes less from the others (H200, 16 cores, of which others use 8: 38 GB/s at 0.026 CPU s/GB instead of 30 at 0.168; 16: 22
// instead of 18). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "sys/kernel.hpp"

namespace penstock::core {

class busy_cores {
 public:
  // With less in use by others the CPU copies faster (44 GB/s instead of 29).
  static constexpr double least_share = 0.4;
  // Who has begun to spare them goes on a while.
  static constexpr double least_share_then = 0.3;
  // What is looked at: the time since the last look.
  static constexpr std::int64_t between_looks_ns = 1'000'000'000;

  // As seen last, and the first time not. own_cores: that this process may use; where these are not all, nobody tells who uses those.
  // now_ns: of a clock that does not go back.
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
  std::mutex lock_;  // guards what follows
  sys::core_use seen_;
};

}  // namespace penstock::core
