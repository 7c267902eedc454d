#include "core/cache/late_ahead.hpp"

#include <algorithm>
#include <mutex>

namespace penstock::core {

namespace {

constexpr std::uint64_t unit = std::uint64_t{128} << 10;  // the kernel requests this much from a server at a time

}  // namespace

// Call with the lock held.
void late_ahead::begin(phase next, std::int64_t now_ns) noexcept {
  if (next != phase_) calls_fetched_ = fetched_to_ = 0;
  phase_ = next;
  calls_ = 0;
  bytes_ = 0;
  began_ns_ = now_ns;
}

// Call with the lock held, after the calls before this one have completed.
void late_ahead::judge(std::int64_t now_ns) noexcept {
  const double ns_per_byte = static_cast<double>(now_ns - began_ns_) / static_cast<double>(std::max<std::uint64_t>(bytes_, 1));
  if (phase_ == phase::plain && calls_ >= timed_plain) {
    plain_ns_per_byte_ = ns_per_byte;
    begin(phase::fetching, now_ns);
  } else if (phase_ == phase::fetching && calls_ >= timed_fetched) {
    begin(ns_per_byte > plain_ns_per_byte_ ? phase::left : phase::fetching, now_ns);
  } else if (phase_ == phase::left && bytes_ >= left_for_bytes) {
    begin(phase::plain, now_ns);
  }
}

late_ahead::range late_ahead::next(std::uint64_t offset, std::uint64_t length, std::uint64_t most_ahead, std::int64_t now_ns) noexcept {
  const std::lock_guard guard(lock_);
  if (offset == end_ && length <= most_call_bytes) {
    judge(now_ns);
  } else if (phase_ != phase::left) {
    begin(phase::plain, now_ns);
  }
  end_ = offset + length;
  if (calls_ == 0) began_ns_ = now_ns;  // the first call
  ++calls_;
  bytes_ += length;
  if (phase_ != phase::fetching) return {};
  const auto window = std::min({++calls_fetched_ * std::max(length, unit), most_ahead, most_bytes});
  const auto from = std::max(fetched_to_, end_);
  const auto to = (end_ + window) / unit * unit;
  if (to <= from) return {};
  fetched_to_ = to;
  return {from, to - from};
}

}  // namespace penstock::core
