// Chooses the number of concurrent requests to a server that maximizes throughput. Starts with a small number and doubles it as long as
// throughput does not fall (small numbers) or rises (large numbers); otherwise returns to the last useful number and tries again later.
// Halves the number if the server throttles.
//
// Measurements: Amazon serves 85-90 MB/s per connection and recommends as many as the throughput needs ("Performance design patterns for
// Amazon S3"); a web server on the same machine is fastest with eight large requests. Not thread-safe, except wanted().
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

  // The number of concurrent requests.
  [[nodiscard]] unsigned wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  // Reports that a request completed with that many bytes. busy: as many requests as wanted were in flight, so the time measures the
  // server.
  void took(std::uint64_t bytes, clock::time_point now, bool busy) noexcept;
  void throttled(clock::time_point now) noexcept;
  // Reports that a request starts after an idle time, which must not be measured.
  void resumes() noexcept { window_began_ = {}; }

 private:
  enum class state : std::uint8_t { climbing, settled, throttled };
  void begin(clock::time_point now) noexcept;
  void judge(double rate, clock::time_point now) noexcept;
  void want(unsigned count) noexcept;

  const unsigned most_;
  std::atomic<unsigned> wanted_{least};
  state now_ = state::climbing;
  double best_ = 0;  // bytes per second, with best_count_ concurrent requests
  unsigned best_count_ = least;
  unsigned doubts_ = 0;
  clock::time_point window_began_{};
  clock::time_point settled_until_{};
  std::uint64_t window_bytes_ = 0;
  unsigned window_ended_ = 0;  // requests
  unsigned window_busy_ = 0;   // busy ones among them
};

}  // namespace penstock::source::remote
