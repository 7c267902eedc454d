#include "remote/s3/parts.hpp"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

namespace penstock::source::remote {

namespace {

constexpr std::uint64_t step_of_part_bytes = std::uint64_t{1} << 20;
constexpr unsigned parts_of_a_size = 1000;

constexpr std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

}  // namespace

result<part_plan> part_plan::of_size(std::uint64_t bytes) {
  if (bytes > most_object_bytes)
    return status(errc::invalid_argument, fmt::format("an object can be at most 5 TiB long, but this one would be {} bytes", bytes));
  part_plan made;
  made.size_ = bytes;
  const auto least = divided_up(divided_up(bytes, most_parts), step_of_part_bytes) * step_of_part_bytes;
  made.part_bytes_ = std::max(usual_part_bytes, least);
  return made;
}

part_range part_plan::part_at(std::uint64_t offset) const noexcept {
  assert(offset < most_object_bytes && (!size_ || offset < *size_));
  if (size_) {
    const auto index = offset / part_bytes_;
    return {static_cast<unsigned>(index + 1), index * part_bytes_, std::min(part_bytes_, *size_ - index * part_bytes_)};
  }
  part_range first{1, 0, part_bytes_};  // the first part with the current size
  while (offset - first.offset >= parts_of_a_size * first.length) {
    first.offset += parts_of_a_size * first.length;
    first.number += parts_of_a_size;
    first.length *= 2;
  }
  const auto index = (offset - first.offset) / first.length;
  return {first.number + static_cast<unsigned>(index), first.offset + index * first.length, first.length};
}

bool come_ranges::add(std::uint64_t first, std::uint64_t end) {
  if (first >= end) return true;
  auto at = ends_.upper_bound(first);
  if (at != ends_.begin() && std::prev(at)->second >= first) --at;
  while (at != ends_.end() && at->first <= end) {
    first = std::min(first, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace_hint(at, first, end);
  return ends_.size() <= most;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> come_ranges::first_gap(std::uint64_t length) const noexcept {
  auto at = ends_.begin();
  std::uint64_t first = 0;
  if (at != ends_.end() && at->first == 0) first = (at++)->second;
  if (first >= length) return std::nullopt;
  return std::pair(first, at == ends_.end() ? length : std::min(length, at->first));
}

}  // namespace penstock::source::remote
