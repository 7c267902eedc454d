// How much memory there is for this process, asked at most about once a second. Thread-safe.
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

  // As it was at most an interval before now_ns (of the engine's clock). Nothing where the kernel does not say. Reads small files when it
  // asks; who comes while another thread does is told what was so before.
  [[nodiscard]] std::optional<sys::memory_state> at(std::int64_t now_ns) noexcept;
  // The next question asks the kernel.
  void forget() noexcept { asked_ns_.store(never); }

 private:
  static constexpr std::int64_t never = std::numeric_limits<std::int64_t>::min() / 2;

  sys::kernel& kernel_;
  std::atomic<std::int64_t> asked_ns_{never};
  std::mutex lock_;  // guards seen_
  std::optional<sys::memory_state> seen_;
};

}  // namespace penstock::core
