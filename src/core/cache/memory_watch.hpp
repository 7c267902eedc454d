// The memory available to this process, queried from the kernel at most about once per second. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>

#include "sys/kernel.hpp"

namespace penstock::core {

class memory_watch {
 public:
  static constexpr std::int64_t interval_ns = 1'000'000'000;

  explicit memory_watch(sys::kernel& kernel) noexcept : kernel_(kernel) {}

  // Returns a state that is at most one interval older than now_ns (on the engine's clock), or nullopt if the kernel does not report it.
  // May read small files. While another thread reads them, it returns the previous state.
  [[nodiscard]] std::optional<sys::memory_state> at(std::int64_t now_ns) noexcept;
  // Makes the next call query the kernel.
  void forget() noexcept { asked_ns_.store(never); }

 private:
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::min() / 2;

  sys::kernel& kernel_;
  std::atomic<std::int64_t> asked_ns_{never};
  std::mutex lock_;  // guards seen_
  std::optional<sys::memory_state> seen_;
};

}  // namespace penstock::core
