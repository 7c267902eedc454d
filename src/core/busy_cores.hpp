// Whether others keep the machine's cores busy: then the GPU copies what it can by itself, faster than threads that wait for a core, and
// takes less from the others (H200, 16 cores, of which others want 8: 38 GB/s at 0.026 CPU s/GB instead of 30 at 0.168; 16: 22 instead of
// 18). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "sys/kernel.hpp"

namespace penstock::core {

class busy_cores {
 public:
  // With fewer the CPU copies faster (44 GB/s instead of 29).
  static constexpr double least_share = 0.5;

  // is_alone: nothing is under way in this engine, so all that wants a core is others'. now_ns: of a clock that does not go back. While
  // there is, what was seen last counts for some seconds.
  bool now(sys::kernel& kernel, bool is_alone, std::int64_t now_ns) noexcept {
    const auto age = now_ns - looked_ns_.load(std::memory_order_relaxed);
    if (is_alone && age >= stays_ns) {
      are_busy_.store(kernel.wanted_cores_share() >= least_share, std::memory_order_relaxed);
      looked_ns_.store(now_ns, std::memory_order_relaxed);
    } else if (!is_alone && age >= counts_ns) {
      return false;
    }
    return are_busy_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t stays_ns = 20'000'000;
  static constexpr std::int64_t counts_ns = 10'000'000'000;

  std::atomic<std::int64_t> looked_ns_{-counts_ns};
  std::atomic<bool> are_busy_{false};
};

}  // namespace penstock::core
