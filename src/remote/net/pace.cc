#include "remote/net/pace.hpp"

#include <algorithm>
#include <utility>

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr auto least_window = 25ms;
constexpr auto most_window = 1s;
constexpr auto longest_window = 2s;   // older measurements are stale
constexpr auto least_latency = 8ms;   // from here on, a server is slow to respond
constexpr unsigned busy_of_four = 3;  // a measurement counts if 3/4 of its looks saw 3/4 of the wanted requests in flight
// Small numbers of connections are multiplied as long as that does no harm: with small ranges, each doubling increases throughput slightly
// (64 KiB from a web server on the same machine: 3.5 GB/s with 8, 5.0 with 32), and with large ranges it does not reduce it.
constexpr unsigned few = 32;
constexpr double worth_growth_of_few = 0.9;
constexpr double worth_doubling = 1.15;
constexpr double slow_rate = 500e6;  // bytes per second: below this, connections cost little, so their number grows faster
constexpr unsigned most_doubts = 2;  // windows without a gain; one may have been distorted
constexpr auto until_next_try = 5s;  // doubled after each try without a gain
constexpr unsigned most_doublings = 4;
constexpr auto quiet_when_reduced = 10s;
constexpr auto quiet_when_few = 2s;

}  // namespace

void pace::want(unsigned count) noexcept {
  const auto before = wanted();
  const auto next = std::clamp(count, 1U, most_);
  wanted_.store(next, std::memory_order_relaxed);
  begins_at_responses_ = seen_responses_ + (next > before ? next - before : 0);
  window_began_ = {};
}

void pace::meet(clock::duration latency) noexcept {
  if (std::exchange(is_met_, true) || now_ != state::climbing || latency < least_latency) return;
  want(std::max(wanted(), least_far));
  best_count_ = wanted();
  expected_.store(most_, std::memory_order_relaxed);
}

void pace::resumes(std::uint64_t responses) noexcept {
  window_began_ = {};
  seen_responses_ = responses;
  begins_at_responses_ = responses + wanted() / 2;
}

bool pace::look(const progress& seen, clock::time_point now) noexcept {
  const auto before = wanted();
  seen_responses_ = seen.responses;
  if (!is_met_ && seen.responses > 0) meet(seen.latency);
  const bool is_busy = 4 * seen.in_flight >= busy_of_four * wanted();
  if (window_began_ == clock::time_point() || now - window_began_ > longest_window) {
    window_began_ = is_busy && seen.responses >= begins_at_responses_ ? now : clock::time_point();
    window_bytes_ = seen.bytes;
    window_looks_ = window_busy_ = 0;
    return wanted() > before;
  }
  ++window_looks_;
  if (is_busy) ++window_busy_;
  const auto time = now - window_began_;
  if (time < std::clamp<clock::duration>(2 * seen.latency, least_window, most_window)) return wanted() > before;
  const bool counts = 4 * window_busy_ >= busy_of_four * window_looks_;
  window_began_ = {};
  if (counts && seen.bytes > window_bytes_)
    judge(static_cast<double>(seen.bytes - window_bytes_) / std::chrono::duration<double>(time).count(), now);
  return wanted() > before;
}

void pace::judge(double rate, clock::time_point now) noexcept {
  if (now_ != state::climbing) {
    if (now < settled_until_) return;
    now_ = state::climbing;
    return climb(rate);
  }
  const bool is_first = best_ == 0;
  auto worth = wanted() <= few ? worth_growth_of_few : 1.0;
  for (auto count = best_count_; worth >= 1 && count < wanted(); count *= 2) worth *= worth_doubling;
  if (!is_first && rate < worth * best_) {
    if (++doubts_ < most_doubts) return;
    want(best_count_);
    return settle(now);
  }
  if (!is_first && wanted() > few) settled_ = 0;
  climb(rate);
  if (best_count_ >= most_) settle(now);
}

void pace::climb(double rate) noexcept {
  doubts_ = 0;
  best_ = rate;
  best_count_ = wanted();
  const bool is_quick = rate < slow_rate && reduced_ == clock::time_point();
  want((is_quick ? 4 : 2) * best_count_);
  expected_.store(is_quick ? most_ : wanted(), std::memory_order_relaxed);
}

void pace::settle(clock::time_point now) noexcept {
  now_ = state::settled;
  settled_until_ = now + until_next_try * (1U << std::min(settled_++, most_doublings));
  expected_.store(wanted(), std::memory_order_relaxed);
}

void pace::reduce(unsigned count, clock::time_point now) noexcept {
  want(count);
  now_ = state::reduced;
  reduced_ = now;
  settled_until_ = now + (wanted() < least ? clock::duration(quiet_when_few) : clock::duration(quiet_when_reduced));
  expected_.store(wanted(), std::memory_order_relaxed);
}

bool pace::throttled(clock::time_point asked, clock::time_point now) noexcept {
  if (asked > reduced_ && wanted() > 1) reduce(wanted() / 2, now);
  return reduced_ != clock::time_point() && asked <= reduced_;
}

void pace::limited(unsigned count, clock::time_point now) noexcept { reduce(std::min(wanted(), count), now); }

}  // namespace penstock::source::remote
