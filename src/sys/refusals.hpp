// Records which file systems (by st_dev) have rejected a call, so that it is not tried again. Thread-safe and lock-free.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock::sys {

class refusals {
 public:
  void note(std::uint64_t device) noexcept {
    if (known(device)) return;
    const auto place = count_.fetch_add(1, std::memory_order_relaxed);
    if (place < devices_.size()) devices_[place].store(device + 1, std::memory_order_relaxed);
  }
  // Also returns false for file systems that did not fit in the table.
  [[nodiscard]] bool known(std::uint64_t device) const noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    for (const auto& each : devices_) {
      const auto one_more = each.load(std::memory_order_relaxed);
      if (one_more == 0) return false;
      if (one_more == device + 1) return true;
    }
    return false;
  }

 private:
  std::array<std::atomic<std::uint64_t>, 64> devices_{};  // st_dev + 1; 0: free
  std::atomic<std::size_t> count_{0};
};

}  // namespace penstock::sys
