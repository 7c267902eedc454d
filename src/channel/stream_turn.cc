#include "channel/stream_turn.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::channel {

namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds shortly(8);

}  // namespace

status stream_turn::add(const staging::link& via, device::stream on) {
  const auto same = [&](const auto& each) { return each->via == &via && each->on == on; };
  if (std::any_of(pending_.begin(), pending_.end(), same)) return {};
  if (std::find(done_.begin(), done_.end(), std::pair(&via, on)) != done_.end()) return {};
  const auto idle = via.session().idle(on);
  if (!idle) return idle.error();
  if (*idle) {
    done_.emplace_back(&via, on);
    return {};
  }
  auto event = device::owned_event::make(via.session());
  if (!event) return event.error();
  if (auto recorded = via.session().record(event->get(), on); !recorded.ok()) return recorded;
  // An idle device reaches an event in a few microseconds; after that this stops polling.
  for (const auto until = clock::now() + shortly; clock::now() < until;) {
    const auto reached = via.session().reached(event->get());
    if (!reached) return reached.error();
    if (*reached) {
      done_.emplace_back(&via, on);
      return {};
    }
  }
  auto added = std::make_unique<pending>();
  added->via = &via;
  added->on = on;
  added->event = *std::move(event);
  added->task.awaited = added->event.get();
  added->task.done = event_reached;
  added->task.context = this;
  pending_.push_back(std::move(added));
  return {};
}

void stream_turn::await(staging::feeders& watched, void (*then)(void*, const status&), void* argument) noexcept {
  then_ = then;
  argument_ = argument;
  left_.store(pending_.size() + 1);
  for (const auto& each : pending_) each->via->feeder().submit(each->task);
  watched.attend();
  one_reached({});
}

void stream_turn::event_reached(staging::copy_task& task, status outcome) noexcept {
  static_cast<stream_turn*>(task.context)->one_reached(outcome);
}

// The feeder does not use a task after calling its done().
void stream_turn::one_reached(const status& outcome) noexcept {
  if (!outcome.ok()) {
    const std::lock_guard guard(lock_);
    if (error_.ok()) error_ = outcome;
  }
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  status told;
  {
    const std::lock_guard guard(lock_);
    told = error_;
  }
  then_(argument_, told);
}

}  // namespace penstock::channel
