// How late one file system answers, and how many reads it is best asked for at once: measured with the reads that bring what is not cached.
// Only file systems with a server are measured; of any other all stays as it is at first. Thread-safe. Pure but for what it is told.
//
// How long a read takes is told by those that begin while no other is under way, since others wait for each other: the quickest of the
// latest. The depth follows from that and from how many reads end in a time: half as many again as are under way at that rate, so that it
// grows until the file system gives no more.
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
  static constexpr unsigned first_at_once = 32;  // before a rate is known
  // A file system whose reads take so long is late, until they take half of it.
  static constexpr std::int64_t late_ns = 1'000'000;
  // Before a read has been timed so many bytes are read past the cache at once, where they can be, to time them.
  static constexpr std::uint64_t untimed_bytes = std::uint64_t{16} << 20;

  enum class verdict : std::uint8_t { unknown, prompt, late };

  // A read under way.
  struct reading {
    std::int64_t began_ns = 0;
    bool alone = false;  // it was the only one when it began
  };

  // Of steady_clock.
  static std::int64_t clock_ns() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // most_read_bytes: in one read that the file system asks its server for; 0: not known.
  void set_most_read(std::uint64_t most_read_bytes) noexcept;
  // One that many bytes long brings what the server gives at once, and is one of enough.
  [[nodiscard]] std::uint64_t piece_bytes() const noexcept { return piece_bytes_.load(std::memory_order_relaxed); }

  // A read begins. ended() follows for each.
  [[nodiscard]] reading begins(std::int64_t now_ns) noexcept;
  // Its first part, short enough for one question to the server, has come: that tells how long an answer takes, and its end does not.
  void answered(reading& by, std::int64_t now_ns) noexcept;
  // brought: it brought bytes that were not cached.
  void ended(const reading& of, std::int64_t now_ns, bool brought) noexcept;
  // More are wanted than at_once() lets begin.
  void held_back() noexcept { was_full_.store(true, std::memory_order_relaxed); }

  [[nodiscard]] verdict advise() const noexcept { return verdict_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool late() const noexcept { return advise() == verdict::late; }
  // How long an answer takes; 0: not known.
  [[nodiscard]] std::int64_t read_ns() const noexcept { return read_ns_.load(std::memory_order_relaxed); }
  // So many under way serve it best, of one that is late.
  [[nodiscard]] unsigned at_once() const noexcept { return at_once_.load(std::memory_order_relaxed); }
  // It has refused to read past the cache into memory that is not aligned.
  [[nodiscard]] bool wants_aligned() const noexcept { return wants_aligned_.load(std::memory_order_relaxed); }
  void refused_unaligned() noexcept { wants_aligned_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] unsigned under_way() const noexcept { return under_way_.load(std::memory_order_relaxed); }

 private:
  void time(std::int64_t took_ns) noexcept;
  void note_rate(std::int64_t now_ns) noexcept;

  static constexpr std::size_t remembered = 8;  // reads that were timed, and rates

  std::atomic<verdict> verdict_{verdict::unknown};
  std::atomic<std::int64_t> read_ns_{0};
  std::atomic<unsigned> at_once_{first_at_once};
  std::atomic<unsigned> under_way_{0};
  std::atomic<bool> was_full_{false};  // in this window
  std::atomic<bool> wants_aligned_{false};
  std::atomic<std::uint64_t> piece_bytes_{std::uint64_t{1} << 20};
  spin_lock lock_;  // guards what follows
  std::array<std::int64_t, remembered> timed_ns_{};
  std::size_t timings_ = 0;
  // The rates of windows of time, in reads per second.
  std::array<double, remembered> rates_{};
  std::size_t windows_ = 0;
  std::int64_t window_began_ns_ = 0;
  std::int64_t last_end_ns_ = 0;
  unsigned ended_in_window_ = 0;
};

}  // namespace penstock::staging
