// Chooses the number of concurrent requests to a server that maximizes throughput. Starts with few, or with more if the server takes long
// to respond, and multiplies the number as long as throughput does not fall (small numbers) or rises (large numbers); otherwise returns to
// the last useful number and tries again later. Reduces the number if the server throttles or refuses connections.
//
// Throughput is measured over tens of milliseconds from the bytes that arrive, not from completed requests: a piece takes half a second
// from a server that gives each connection 10 MB/s. Amazon serves 85-90 MB/s per connection and recommends as many as the throughput needs
// ("Performance design patterns for Amazon S3"); a web server on the same machine is fastest with eight large requests. Not thread-safe,
// except wanted() and expected().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace penstock::source::remote {

class pace {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr unsigned least = 8;       // at first
  static constexpr unsigned least_far = 32;  // at first, if the server takes long to respond
  // Totals of a server, and the requests in flight now.
  struct progress {
    std::uint64_t bytes = 0;
    std::uint64_t responses = 0;
    unsigned in_flight = 0;
    clock::duration latency{};  // of recent responses
  };

  explicit pace(unsigned most) noexcept : most_(most < least ? least : most) {}

  // The number of concurrent requests.
  [[nodiscard]] unsigned wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  // The number that wanted() may soon reach.
  [[nodiscard]] unsigned expected() const noexcept { return expected_.load(std::memory_order_relaxed); }
  // Reports how long the server took to respond, before anything else is known about it.
  void meet(clock::duration latency) noexcept;
  // Measures. Call this often while bytes arrive. Returns true if the number has risen.
  bool look(const progress& seen, clock::time_point now) noexcept;
  // Reports that the server refused a request that was sent at that time because there were too many. Lowers the number once for all
  // requests that were in flight together. Returns true if the number is lower now than when the request was sent.
  bool throttled(clock::time_point asked, clock::time_point now) noexcept;
  // Reports that no more than this many connections could be opened.
  void limited(unsigned count, clock::time_point now) noexcept;
  // Reports that a request starts after an idle time, which must not be measured.
  void resumes(std::uint64_t responses) noexcept;

 private:
  enum class state : std::uint8_t { climbing, settled, reduced };
  void judge(double rate, clock::time_point now) noexcept;
  void climb(double rate) noexcept;
  void settle(clock::time_point now) noexcept;
  void reduce(unsigned count, clock::time_point now) noexcept;
  void want(unsigned count) noexcept;

  const unsigned most_;
  std::atomic<unsigned> wanted_{least};
  std::atomic<unsigned> expected_{least};
  state now_ = state::climbing;
  bool is_met_ = false;
  double best_ = 0;  // bytes per second, with best_count_ concurrent requests
  unsigned best_count_ = least;
  unsigned doubts_ = 0;
  unsigned settled_ = 0;  // how often in a row it settled without a gain
  clock::time_point settled_until_{};
  clock::time_point reduced_{};
  // A window begins when this many responses have arrived, so that new connections count in full.
  std::uint64_t begins_at_responses_ = 0;
  std::uint64_t seen_responses_ = 0;
  clock::time_point window_began_{};
  std::uint64_t window_bytes_ = 0;
  unsigned window_looks_ = 0;
  unsigned window_busy_ = 0;  // looks that saw about as many requests in flight as wanted
};

}  // namespace penstock::source::remote
