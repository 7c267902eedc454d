// When a copy over one link will have arrived, of which several are under way, one behind the other: what lets whoever waits for it sleep
// for most of that time instead of looking again and again. What it knows are the copies that it is told of. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::path {

class link_pace {
 public:
  using clock = std::chrono::steady_clock;

  // Of shorter waits (in bytes) nothing is learnt: how late their ends were seen is too much of them.
  static constexpr std::uint64_t least_learnt_bytes = std::uint64_t{16} << 20;

  // Whoever has slept so long looks again: the pace may be that of a moment in which the link stood still.
  static constexpr std::chrono::milliseconds most_slept{60};

  // One that is under way. The link moves `bytes` from `from` until its end: its own, and those of the copies ahead of it.
  struct copy {
    clock::time_point from;
    std::uint64_t bytes = 0;
    std::uint64_t end = 0;  // of all bytes that ever were to be moved
  };

  // So many bytes have been handed to the driver now.
  [[nodiscard]] copy begin(std::uint64_t bytes, clock::time_point now) noexcept;
  // It has been seen to have arrived; or it failed, and is not under way any more.
  void end(const copy& over, bool arrived, clock::time_point now) noexcept;
  // Most of the time that is left until its end, if the link is as fast as it was at its best of late. 0: nothing is known.
  [[nodiscard]] std::chrono::nanoseconds most_of_wait(const copy& of, clock::time_point now) const noexcept;

 private:
  mutable spin_lock lock_;   // guards what follows
  double ns_per_byte_ = 0;   // 0: not known
  std::uint64_t begun_ = 0;  // bytes
  std::uint64_t ended_ = 0;  // bytes: copies end in the order in which they began
  clock::time_point last_end_;
};

}  // namespace penstock::path
