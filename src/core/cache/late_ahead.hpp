// Of a file on a mount that answers late: what the blocking reads that go through it in order will want next, so that the kernel fetches it
// into the page cache while they are at the bytes before. Thread-safe; pure.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class late_ahead {
 public:
  // Longer calls have many reads under way by themselves.
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;
  static constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;
  // So many calls in order before anything is fetched.
  static constexpr unsigned least_in_order = 2;

  struct range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;  // 0: nothing
  };
  // A call for this range begins: what is to be fetched now. At first a few times what a call asks for, later up to most_ahead bytes.
  range next(std::uint64_t offset, std::uint64_t length, std::uint64_t most_ahead) noexcept;

 private:
  spin_lock lock_;                // guards what follows
  std::uint64_t end_ = 0;         // of the last call
  std::uint64_t fetched_to_ = 0;  // since they are in order
  unsigned in_order_ = 0;         // calls, each of which began where the last one had ended
};

}  // namespace penstock::core
