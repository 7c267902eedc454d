// Which of the machine's file systems have refused something, by st_dev, so that they are not asked again. Thread-safe, without a lock.
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
  // False also of those for which there was no room.
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
  std::array<std::atomic<std::uint64_t>, 64> devices_{};  // and 1; 0: nothing
  std::atomic<std::size_t> count_{0};
};

}  // namespace penstock::sys
