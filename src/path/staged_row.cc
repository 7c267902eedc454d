// Extents of a row: what a slab holds goes to many places.
#include <algorithm>
#include <utility>

#include "path/staged.hpp"

namespace penstock::path {

// So many bytes of an extent, from its beginning on, lie at `from`: where they go. False: nowhere, since they are a gap.
bool staged::aim(row_copy& copy, const job& item, std::uint64_t bytes, const std::byte* from) {
  copy.parts.clear();
  const std::uint64_t end = item.offset + bytes;
  auto part = std::upper_bound(item.row.begin(), item.row.end(), item.offset,
                               [](std::uint64_t offset, const row_part& each) { return offset < each.offset + each.length; });
  for (; part != item.row.end() && part->offset < end; ++part) {
    const std::uint64_t begins = std::max(part->offset, item.offset);
    const std::uint64_t ends = std::min(part->offset + part->length, end);
    copy.parts.push_back({from + (begins - item.offset), part->memory + (begins - part->offset), ends - begins});
  }
  if (copy.parts.empty()) return false;
  if (copy.parts.size() == 1) {
    aim_at_last(copy);
    return true;
  }
  copy.table = copy.parts.data();
  copy.count = copy.parts.size();
  copy.packed = from;
  copy.bytes = bytes;
  return true;
}

// A copy for one part.
void staged::aim_at_last(row_copy& copy) {
  const auto part = copy.parts.back();
  copy.parts.pop_back();
  copy.source = part.source;
  copy.target = part.target;
  copy.bytes = part.bytes;
}

// Queues a copy that was aimed; ended is called when all of it is there. item: of which it is, or one of those.
void staged::send_row(row_copy& copy, job& item, void (*ended)(staging::copy_task&, status)) {
  copy.of = &item;
  copy.ended = ended;
  copy.done = &staged::row_sent;
  submit(item, copy);
}

// Where the device has no kernel, or no memory for it, the parts follow as single copies.
void staged::row_sent(staging::copy_task& task, status outcome) {
  auto& copy = static_cast<row_copy&>(task);
  if (copy.packed != nullptr && (outcome.code() == errc::unsupported || outcome.code() == errc::out_of_memory)) {
    copy.of->owner->did_without(*copy.of, outcome.with_context("pieces are copied one by one"));
    outcome = {};
  } else if (copy.packed != nullptr) {
    copy.parts.clear();
  }
  if (!outcome.ok() || copy.parts.empty()) {
    copy.ended(copy, std::move(outcome));
    return;
  }
  copy.packed = nullptr;
  copy.table = nullptr;
  copy.count = 0;
  aim_at_last(copy);
  path_of(*copy.of).submit(*copy.of, copy);
}

}  // namespace penstock::path
