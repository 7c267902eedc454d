// Of a file on a mount that answers late: what the blocking reads that go through it in order will want next, so that the kernel fetches it
// into the page cache while they are at the bytes before. The kernel asks the server for 128 KiB at a time, which a server that answers few
// at once gives slower than one call asks for: so calls are timed, before and after, and the slower way is left. Thread-safe; pure.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class late_ahead {
 public:
  // Longer calls have many reads under way by themselves.
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;
  static constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;
  // So many calls in order are timed before anything is fetched, and so many at a time from then on.
  static constexpr unsigned timed_plain = 4;
  static constexpr unsigned timed_fetched = 8;
  // Where fetching was slower it is not tried again for so many bytes.
  static constexpr std::uint64_t left_for_bytes = std::uint64_t{512} << 20;

  struct range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;  // 0: nothing
  };
  // A call for this range begins: what is to be fetched now. At first as much as the call asks for, with each call more, up to most_ahead.
  range next(std::uint64_t offset, std::uint64_t length, std::uint64_t most_ahead, std::int64_t now_ns) noexcept;

 private:
  enum class phase : std::uint8_t { plain, fetching, left };
  void begin(phase next, std::int64_t now_ns) noexcept;
  void judge(std::int64_t now_ns) noexcept;

  spin_lock lock_;         // guards what follows
  std::uint64_t end_ = 0;  // of the last call
  phase phase_ = phase::plain;
  std::uint64_t fetched_to_ = 0;
  std::uint64_t calls_fetched_ = 0;  // since fetching began
  double plain_ns_per_byte_ = 0;
  // Of the calls that are timed together.
  unsigned calls_ = 0;
  std::uint64_t bytes_ = 0;
  std::int64_t began_ns_ = 0;
};

}  // namespace penstock::core
