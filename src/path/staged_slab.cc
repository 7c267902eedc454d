// The destinations of a full slab. Its bytes go to one place or, for a row, to many, over the device's link or a neighbour's.
#include <algorithm>
#include <utility>

#include "path/staged.hpp"

namespace penstock::path {

// Sets the destinations of the first bytes of an extent, which start at `from`. Returns false if there are none, because the bytes are a
// gap.
bool staged::aim(slab_copy& copy, const job& item, std::uint64_t bytes, const std::byte* from) {
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

// Prepares a copy for one part.
void staged::aim_at_last(slab_copy& copy) {
  const auto part = copy.parts.back();
  copy.parts.pop_back();
  copy.source = part.source;
  copy.target = part.target;
  copy.bytes = part.bytes;
  copy.packed = nullptr;
  copy.table = nullptr;
  copy.count = 0;
}

// Queues a prepared copy over the least busy link. `ended` is called when all of it has arrived. item: the job of the copy, or one of them.
void staged::send_over(slab_copy& copy, job& item, void (*ended)(staging::copy_task&, status)) {
  auto& own = *item.place.via;
  copy.of = &item;
  copy.ended = ended;
  copy.done = &staged::slab_sent;
  copy.by = item.neighbours == 0 ? &own : &own.quietest(item.neighbours);
  if (copy.by != &own && !divert(copy)) copy.by = &own;
  submit(item, copy, *copy.by);
}

// Sends the copy over a neighbour, which copies each part. Returns false if there are too many parts.
bool staged::divert(slab_copy& copy) {
  constexpr std::size_t most_parts = 16;
  if (copy.packed == nullptr) {
    copy.parts.push_back({copy.source, copy.target, copy.bytes});
    copy.table = copy.parts.data();
    copy.count = 1;
    copy.packed = static_cast<const std::byte*>(copy.source);
  }
  copy.elsewhere = copy.count <= most_parts;
  return copy.elsewhere;
}

// Stops using a neighbour's link that fails. If the device has no kernel, or no memory for packed bytes, the parts are sent as individual
// copies.
void staged::slab_sent(staging::copy_task& task, status outcome) {
  auto& copy = static_cast<slab_copy&>(task);
  auto& item = *copy.of;
  auto& own = *item.place.via;
  if (copy.by != &own && !outcome.ok()) {
    item.owner->did_without(item, outcome.with_context("over another GPU's PCIe link"));
    own.drop_neighbour(*copy.by);
    copy.by = &own;
    copy.elsewhere = false;
    if (copy.parts.size() == 1) aim_at_last(copy);
    path_of(item).submit(item, copy, own);
    return;
  }
  if (copy.packed != nullptr && (outcome.code() == errc::unsupported || outcome.code() == errc::out_of_memory)) {
    item.owner->did_without(item, outcome.with_context("pieces are copied one by one"));
    outcome = {};
  } else if (copy.packed != nullptr) {
    copy.parts.clear();
  }
  if (!outcome.ok() || copy.parts.empty()) {
    copy.ended(copy, std::move(outcome));
    return;
  }
  aim_at_last(copy);
  path_of(item).submit(item, copy, own);
}

}  // namespace penstock::path
