// How many requests a server is asked at once: as many as bring more bytes. Begins with few; while twice as many bring no less (of few), or
// more (of many), it goes on; else it goes back to what was enough, and tries again later. A server that says it is asked too much is asked
// half as much.
// The measure: Amazon serves 85-90 MB/s a connection and asks for as many as the throughput wants ("Performance design patterns for Amazon
// S3"); a web server on the same machine gives its most of large pieces to eight. For one thread at a time, but for wanted().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace penstock::source::remote {

class pace {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr unsigned least = 8;

  explicit pace(unsigned most) noexcept : most_(most < least ? least : most) {}

  // Requests at once.
  [[nodiscard]] unsigned wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  // A request has ended with so many bytes. busy: there were as many under way as are wanted, so that the time tells what the server gives.
  void took(std::uint64_t bytes, clock::time_point now, bool busy) noexcept;
  void throttled(clock::time_point now) noexcept;
  // Nothing was under way, and now something is: the time before tells nothing.
  void resumes() noexcept { window_began_ = {}; }

 private:
  enum class state : std::uint8_t { climbing, settled, throttled };
  void begin(clock::time_point now) noexcept;
  void judge(double rate, clock::time_point now) noexcept;
  void want(unsigned count) noexcept;

  const unsigned most_;
  std::atomic<unsigned> wanted_{least};
  state now_ = state::climbing;
  double best_ = 0;  // bytes a second, with best_count_ at once
  unsigned best_count_ = least;
  unsigned doubts_ = 0;
  clock::time_point window_began_{};
  clock::time_point settled_until_{};
  std::uint64_t window_bytes_ = 0;
  unsigned window_ended_ = 0;  // requests
  unsigned window_busy_ = 0;   // of those
};

}  // namespace penstock::source::remote
