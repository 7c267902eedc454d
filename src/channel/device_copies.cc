#include "channel/device_copies.hpp"

#include <chrono>
#include <utility>

#include "staging/worker.hpp"

namespace penstock::channel {

namespace {

constexpr std::uint64_t small_copy = std::uint64_t{1} << 20;

// Small copies are over before the watcher would look. polled: somebody waits for this pipe, and looks after copies too.
void look_after_copies(const incoming& of, std::uint64_t bytes, staging::feeders& copies, bool polled) {
  using clock = std::chrono::steady_clock;
  const auto until = clock::now() + std::chrono::microseconds(bytes <= small_copy && !polled ? 30 : 0);
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
  added.task.source = source;
  added.task.target = static_cast<std::byte*>(message_.targets[tensor].memory) + offset;
  added.task.bytes = bytes;
}

void device_copies::start() noexcept {
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
