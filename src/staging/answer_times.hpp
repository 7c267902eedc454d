// Measures the response time of one file system, and how many concurrent reads it serves best. Uses the reads that fetch uncached bytes.
// Only file systems with a server are measured; for others the initial values do not change. Thread-safe. Its only input is the calls
// below.
//
// The response time is the shortest of the latest timed reads. Only a read that starts while no other is in flight is timed, because
// concurrent reads wait for each other. The read depth is 1.5x the number of reads in flight at the measured rate, so it grows until the
// rate stops growing.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/spin_lock.hpp"

namespace penstock::staging {

class answer_times {
 public:
  static constexpr unsigned most_at_once = 256;
  static constexpr unsigned first_at_once = 32;  // until a rate is known
  // A file system with this response time is considered slow until the time halves.
  static constexpr std::int64_t late_ns = 1'000'000;
  // Until a read has been timed, no more than this many bytes are read past the page cache at a time (if possible), in order to time them.
  static constexpr std::uint64_t untimed_bytes = std::uint64_t{16} << 20;

  enum class verdict : std::uint8_t { unknown, prompt, late };

  // A read in flight.
  struct reading {
    std::int64_t began_ns = 0;
    bool alone = false;  // no other read was in flight when it started
  };

  // Returns the time of steady_clock.
  static std::int64_t clock_ns() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // most_read_bytes: the largest read that the file system sends to its server; 0: unknown.
  void set_most_read(std::uint64_t most_read_bytes) noexcept;
  // Returns the best size of one read: the amount that the server returns in one response, as a power of two between 1 and 4 MiB.
  [[nodiscard]] std::uint64_t piece_bytes() const noexcept { return piece_bytes_.load(std::memory_order_relaxed); }

  // Records the start of a read. Each call needs a matching ended().
  [[nodiscard]] reading begins(std::int64_t now_ns) noexcept;
  // Records that the first part of the read has arrived. That part fits in one request to the server, so its time is the response time. The
  // completion of the read is then not timed.
  void answered(reading& by, std::int64_t now_ns) noexcept;
  // brought: the read fetched uncached bytes.
  void ended(const reading& of, std::int64_t now_ns, bool brought) noexcept;
  // Records that at_once() prevented further reads from starting.
  void held_back() noexcept { was_full_.store(true, std::memory_order_relaxed); }

  [[nodiscard]] verdict advise() const noexcept { return verdict_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool late() const noexcept { return advise() == verdict::late; }
  // Returns the response time; 0: unknown.
  [[nodiscard]] std::int64_t read_ns() const noexcept { return read_ns_.load(std::memory_order_relaxed); }
  // Returns the best number of reads in flight on a slow file system.
  [[nodiscard]] unsigned at_once() const noexcept { return at_once_.load(std::memory_order_relaxed); }
  // True if the file system rejected reads past the page cache into unaligned memory.
  [[nodiscard]] bool wants_aligned() const noexcept { return wants_aligned_.load(std::memory_order_relaxed); }
  void refused_unaligned() noexcept { wants_aligned_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] unsigned under_way() const noexcept { return under_way_.load(std::memory_order_relaxed); }

 private:
  void time(std::int64_t took_ns) noexcept;
  void note_rate(std::int64_t now_ns) noexcept;

  static constexpr std::size_t remembered = 8;  // timed reads, and rates

  std::atomic<verdict> verdict_{verdict::unknown};
  std::atomic<std::int64_t> read_ns_{0};
  std::atomic<unsigned> at_once_{first_at_once};
  std::atomic<unsigned> under_way_{0};
  std::atomic<bool> was_full_{false};  // in the current window
  std::atomic<bool> wants_aligned_{false};
  std::atomic<std::uint64_t> piece_bytes_{std::uint64_t{1} << 20};
  spin_lock lock_;  // guards the members below
  std::array<std::int64_t, remembered> timed_ns_{};
  std::size_t timings_ = 0;
  // Rates per time window, in reads per second.
  std::array<double, remembered> rates_{};
  std::size_t windows_ = 0;
  std::int64_t window_began_ns_ = 0;
  std::int64_t last_end_ns_ = 0;
  unsigned ended_in_window_ = 0;
};

}  // namespace penstock::staging
