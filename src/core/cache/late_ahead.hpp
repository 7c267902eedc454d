// Predicts what sequential blocking reads will need next, for one file on a file system that answers slowly. The kernel then fetches that
// into the page cache while the reads use the bytes before it. The kernel requests 128 KiB at a time from the server. If the server answers
// few requests concurrently, that can be slower than the single request that one call makes. Therefore calls are timed with and without
// fetching, and the slower method is dropped. Thread-safe; pure.
#pragma once

#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::core {

class late_ahead {
 public:
  // Longer calls already have many reads in flight.
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;
  static constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;
  // This many sequential calls are timed before fetching starts. After that, calls are timed in groups of this size.
  static constexpr unsigned timed_plain = 4;
  static constexpr unsigned timed_fetched = 8;
  // If fetching was slower, it is not tried again until this many bytes were read.
  static constexpr std::uint64_t left_for_bytes = std::uint64_t{512} << 20;

  struct range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;  // 0: nothing
  };
  // Called when a read of this range starts. Returns the range to fetch now: at first as much as the call reads, growing with each call up
  // to most_ahead.
  range next(std::uint64_t offset, std::uint64_t length, std::uint64_t most_ahead, std::int64_t now_ns) noexcept;

 private:
  enum class phase : std::uint8_t { plain, fetching, left };
  void begin(phase next, std::int64_t now_ns) noexcept;
  void judge(std::int64_t now_ns) noexcept;

  spin_lock lock_;         // guards the members below
  std::uint64_t end_ = 0;  // end of the last call
  phase phase_ = phase::plain;
  std::uint64_t fetched_to_ = 0;
  std::uint64_t calls_fetched_ = 0;  // since fetching started
  double plain_ns_per_byte_ = 0;
  // The group of calls being timed.
  unsigned calls_ = 0;
  std::uint64_t bytes_ = 0;
  std::int64_t began_ns_ = 0;
};

}  // namespace penstock::core
