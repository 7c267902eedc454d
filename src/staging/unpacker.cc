#include "staging/unpacker.hpp"

#include <algorithm>
#include <cassert>

#include "base/no_memory.hpp"

namespace penstock::staging {

unpacker::~unpacker() {
  if (memory_ != nullptr) (void)or_no_memory([this] { return session_.release(memory_); });
}

status unpacker::prepare(bool needs_kernel) {
  if (needs_kernel) {
    if (auto problem = session_.prepare_scatter(); !problem.ok()) return problem;
  }
  if (!kernels_) {
    auto made = device::owned_stream::make(session_);
    if (!made) return made.error();
    kernels_ = *std::move(made);
  }
  for (auto& each : rooms_) {
    for (auto* event : {&each.copied, &each.unpacked}) {
      if (*event) continue;
      auto made = device::owned_event::make(session_);
      if (!made) return made.error();
      *event = *std::move(made);
    }
  }
  if (memory_ != nullptr) return {};
  auto memory = session_.allocate(room_count * room_bytes);
  if (!memory) return memory.error();
  memory_ = static_cast<std::byte*>(*memory);
  return {};
}

status unpacker::issue(const load& what, device::stream copies) {
  assert(what.bytes <= room_bytes);
  if (auto problem = prepare(what.segments.size() > 1 && !what.elsewhere); !problem.ok()) return problem;
  auto queued = or_no_memory([&] { return queue(what, copies); });
  if (queued.ok()) return queued;
  // Part of it may be in flight. Its memory must be unused before the caller is notified of the failure.
  for (const auto on : {copies, kernels_.get()}) (void)or_no_memory([&] { return session_.synchronize(on); });
  return queued;
}

status unpacker::queue(const load& what, device::stream copies) {
  auto& mine = rooms_[next_ % room_count];
  std::byte* const room = memory_ + (next_ % room_count) * room_bytes;
  ++next_;
  if (mine.used) {
    if (auto held = session_.wait_event(copies, mine.unpacked.get()); !held.ok()) return held;
  }
  mine.used = true;
  if (auto sent = session_.copy(room, what.source, what.bytes, copies); !sent.ok()) return sent;
  if (auto marked = session_.record(mine.copied.get(), copies); !marked.ok()) return marked;
  if (auto held = session_.wait_event(kernels_.get(), mine.copied.get()); !held.ok()) return held;
  if (auto brought = bring(what, room); !brought.ok()) return brought;
  return session_.record(mine.unpacked.get(), kernels_.get());
}

status unpacker::bring(const load& what, const std::byte* room) {
  const auto in_room = [&](const void* source) { return room + (static_cast<const std::byte*>(source) - what.source); };
  const auto on = kernels_.get();
  auto segments = what.segments;
  if (what.elsewhere || segments.size() == 1) {
    for (const auto& each : segments) {
      if (auto copied = session_.copy(each.target, in_room(each.source), each.bytes, on); !copied.ok()) return copied;
    }
    return {};
  }
  std::array<device::segment, device::session::short_table> table;
  while (!segments.empty()) {
    const auto count = std::min(segments.size(), table.size());
    for (std::size_t i = 0; i < count; ++i) table[i] = {in_room(segments[i].source), segments[i].target, segments[i].bytes};
    if (auto launched = session_.scatter_short({table.data(), count}, on); !launched.ok()) return launched;
    segments = segments.subspan(count);
  }
  return {};
}

}  // namespace penstock::staging
