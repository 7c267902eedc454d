#include "remote/net/pace.hpp"

#include <algorithm>

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr auto least_window = 25ms;
constexpr auto longest_window = 2s;   // older measurements are stale
constexpr unsigned rounds = 3;        // requests per connection in a window
constexpr unsigned busy_of_four = 3;  // out of four requests; with fewer, the window's measurement is not used
// Small numbers of connections are doubled as long as that does no harm: with small ranges, each doubling increases throughput slightly (64
// KiB from a web server on the same machine: 3.5 GB/s with 8, 5.0 with 32), and with large ranges it does not reduce it.
constexpr unsigned few = 32;
constexpr double worth_doubling_few = 0.9;
constexpr double worth_doubling = 1.15;
constexpr unsigned most_doubts = 2;  // windows without a gain; one may have been distorted
constexpr auto until_next_try = 5s;
constexpr auto quiet_after_throttling = 10s;

}  // namespace

void pace::begin(clock::time_point now) noexcept {
  window_began_ = now;
  window_bytes_ = 0;
  window_ended_ = 0;
  window_busy_ = 0;
}

void pace::want(unsigned count) noexcept { wanted_.store(std::clamp(count, least, most_), std::memory_order_relaxed); }

void pace::took(std::uint64_t bytes, clock::time_point now, bool busy) noexcept {
  if (window_began_ == clock::time_point() || now - window_began_ > longest_window) return begin(now);
  window_bytes_ += bytes;
  ++window_ended_;
  if (busy) ++window_busy_;
  const auto time = now - window_began_;
  if (time < least_window || window_ended_ < rounds * wanted()) return;
  if (4 * window_busy_ >= busy_of_four * window_ended_)
    judge(static_cast<double>(window_bytes_) / std::chrono::duration<double>(time).count(), now);
  begin(now);
}

void pace::judge(double rate, clock::time_point now) noexcept {
  if (now_ != state::climbing) {
    if (now < settled_until_) return;
    now_ = state::climbing;
    doubts_ = 0;
    best_ = rate;
    best_count_ = wanted();
    return want(2 * wanted());
  }
  if (rate < (wanted() <= few ? worth_doubling_few : worth_doubling) * best_) {
    if (++doubts_ < most_doubts) return;
    now_ = state::settled;
    settled_until_ = now + until_next_try;
    return want(best_count_);
  }
  doubts_ = 0;
  best_ = rate;
  best_count_ = wanted();
  if (best_count_ < most_) return want(2 * best_count_);
  now_ = state::settled;
  settled_until_ = now + until_next_try;
}

void pace::throttled(clock::time_point now) noexcept {
  if (now_ == state::throttled && now < settled_until_) return;  // other requests in flight report it too
  now_ = state::throttled;
  settled_until_ = now + quiet_after_throttling;
  want(wanted() / 2);
  begin(now);
}

}  // namespace penstock::source::remote
