// Durations of a server's most recent pieces, used to detect late pieces among those in flight: the slowest 1 to 2 %, whose connection or
// server machine has a problem ("Performance design patterns for Amazon S3": retry the slowest 1 %). Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace penstock::source::remote {

class recent_times {
 public:
  using duration = std::chrono::steady_clock::duration;
  void took(duration time, std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    times_[count_ % times_.size()] = {time, bytes};
    ++count_;
  }
  // Returns true if a piece with that many bytes, in flight for that time, is late. Returns false until enough pieces are known.
  [[nodiscard]] bool is_late(duration time, std::uint64_t bytes) const noexcept {
    if (count_ < least_known) return false;
    auto sorted = times_;
    const auto known = std::min(count_, sorted.size());
    const auto most = sorted.begin() + static_cast<std::ptrdiff_t>(known - 1 - known / one_in);
    const auto shorter = [](const piece& one, const piece& other) { return one.time < other.time; };
    std::nth_element(sorted.begin(), most, sorted.begin() + static_cast<std::ptrdiff_t>(known), shorter);
    const auto longer = std::max<std::uint64_t>(1, bytes / std::max(most->bytes, unit_bytes));  // how many times longer than that piece
    return time > times_as_long * longer * most->time;
  }

 private:
  struct piece {
    duration time{};
    std::uint64_t bytes = 0;
  };
  static constexpr std::uint64_t unit_bytes = std::uint64_t{1} << 20;  // shorter pieces are not significantly faster
  static constexpr std::size_t least_known = 16;
  static constexpr std::size_t one_in = 10;  // ignore the slowest tenth
  static constexpr int times_as_long = 4;
  std::array<piece, 64> times_{};
  std::size_t count_ = 0;
};

}  // namespace penstock::source::remote
