#include "path/link_pace.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>

namespace penstock::path {

namespace {

// What was slow is believed little by little: it may have been seen late, or have shared the link with copies that nobody told of. What
// was quick is believed at once: a wait that is too short costs a few looks, one that is too long costs time.
constexpr double most_growth = 1.0 / 16;
// A first copy may have stood still for any reason; no link is slower (1 GB/s).
constexpr double most_ns_per_byte = 1;
constexpr double slept_share = 7.0 / 8;

double nanoseconds_between(link_pace::clock::time_point from, link_pace::clock::time_point to) noexcept {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

}  // namespace

link_pace::copy link_pace::begin(std::uint64_t bytes, clock::time_point now) noexcept {
  const std::lock_guard guard(lock_);
  // The first of those under way began when the one before it ended.
  const auto from = begun_ == ended_ ? now : last_end_;
  if (begun_ == ended_) last_end_ = now;
  begun_ += bytes;
  return {from, begun_ - ended_, begun_};
}

void link_pace::end(const copy& over, bool arrived, clock::time_point now) noexcept {
  const std::lock_guard guard(lock_);
  if (over.end > ended_) {
    ended_ = over.end;
    last_end_ = now;
  }
  if (!arrived || over.bytes < least_learnt_bytes) return;
  const double seen = std::min(nanoseconds_between(over.from, now) / static_cast<double>(over.bytes), most_ns_per_byte);
  ns_per_byte_ = ns_per_byte_ > 0 ? std::min(seen, ns_per_byte_ * (1 + most_growth)) : seen;
}

std::chrono::nanoseconds link_pace::most_of_wait(const copy& of, clock::time_point now) const noexcept {
  const std::lock_guard guard(lock_);
  const double left = ns_per_byte_ * static_cast<double>(of.bytes) - nanoseconds_between(of.from, now);
  return std::chrono::nanoseconds(
      std::llround(std::clamp(left * slept_share, 0.0, std::chrono::duration<double, std::nano>(most_slept).count())));
}

}  // namespace penstock::path
