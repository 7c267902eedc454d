#include "channel/device_copies.hpp"

#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::channel {

namespace {

constexpr std::uint64_t small_copy = std::uint64_t{1} << 20;

// A small copy finishes before the watcher would check it. With several messages, waiting for each would put the copies one after the
// other. polled: a thread is polling this pipe and also checks copies.
void look_after_copies(const incoming& of, std::uint64_t bytes, staging::feeders& copies, bool polled) {
  using clock = std::chrono::steady_clock;
  (void)copies.pump();
  const bool is_soon = bytes <= small_copy && of.is_alone && !polled;
  const auto until = clock::now() + std::chrono::microseconds(is_soon ? 30 : 0);
  while (of.parts_left.load(std::memory_order_acquire) > 1 && clock::now() < until) {
    if (!copies.pump()) staging::relax();
  }
  copies.attend();
}

}  // namespace

void device_copies::add(std::size_t tensor, std::uint64_t offset, std::uint64_t bytes, const void* source,
                        std::shared_ptr<const void> kept) {
  auto& added = copies_.emplace_back();
  added.of = &message_;
  added.kept = std::move(kept);
  added.via = message_.places[tensor].via;
  added.on = message_.targets[tensor].stream;
  added.task.source = source;
  added.task.target = static_cast<std::byte*>(message_.targets[tensor].memory) + offset;
  added.task.bytes = bytes;
}

// Each stream runs its copies in order, so work that the user queues there later needs no help from a thread.
void device_copies::put_onto_streams() noexcept {
  for (auto& each : copies_) {
    const auto put = each.via->session().copy(each.task.target, each.task.source, each.task.bytes, each.on);
    if (!put.ok()) message_.fail(put.with_context("a copy on a target's stream"));
  }
  mark_ends();
  const auto count = copies_.size();
  if (passed_.over()) {
    message_.parts_passed(count);
    return;
  }
  const auto passed = [](void* of, const status& outcome) {
    auto& mine = *static_cast<device_copies*>(of);
    if (!outcome.ok()) mine.message_.fail(outcome);
    mine.message_.parts_passed(mine.copies_.size());
  };
  passed_.await(with_.runtime->feeders(), passed, this);
}

// If an event cannot mark when the source is free, the host waits for the stream.
void device_copies::mark_ends() noexcept {
  for (auto& each : copies_) {
    const auto marked = or_no_memory([&] { return passed_.add(*each.via, each.on); });
    if (marked.ok()) continue;
    message_.fail(marked.with_context("a target's stream"));
    (void)each.via->session().synchronize(each.on);
  }
}

void device_copies::start() noexcept {
  if (message_.on_streams) {
    put_onto_streams();
    return;
  }
  std::uint64_t bytes = 0;
  for (auto& each : copies_) {
    bytes += each.task.bytes;
    each.task.context = &each;
    each.task.done = [](staging::copy_task& task, status outcome) {
      auto& of = *static_cast<copy*>(task.context)->of;
      if (!outcome.ok()) of.fail(outcome);
      of.parts_ended(1);
    };
    each.via->feeder().submit(each.task);
  }
  look_after_copies(message_, bytes, with_.runtime->feeders(), over_.polled());
}

}  // namespace penstock::channel
