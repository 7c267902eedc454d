#include "core/cache/late_ahead.hpp"

#include <algorithm>
#include <mutex>

namespace penstock::core {

namespace {

constexpr std::uint64_t unit = std::uint64_t{128} << 10;  // the kernel asks a server for so much at once
constexpr unsigned most_doublings = 10;

}  // namespace

late_ahead::range late_ahead::next(std::uint64_t offset, std::uint64_t length, std::uint64_t most_ahead) noexcept {
  const std::lock_guard guard(lock_);
  const bool goes_on = offset == end_ && length <= most_call_bytes;
  in_order_ = goes_on ? in_order_ + 1 : 0;
  if (!goes_on) fetched_to_ = 0;
  end_ = offset + length;
  if (in_order_ < least_in_order) return {};
  const auto window = std::min({length << std::min(in_order_, most_doublings), most_ahead, most_bytes});
  const auto from = std::max(fetched_to_, end_);
  const auto to = (end_ + window) / unit * unit;
  if (to <= from) return {};
  fetched_to_ = to;
  return {from, to - from};
}

}  // namespace penstock::core
