#include "pipe/posted_receive.hpp"

#include <cassert>

#include "base/no_memory.hpp"

namespace penstock::pipes {

// The callback may run before the operation is stored, may already have started the next stage, and may destroy this object.
template <class Start>
void posted_receive::go_on(stage next, Start start) {
  retain();
  {
    const std::lock_guard guard(lock_);
    assert(at_ < next);
    at_ = next;
  }
  const auto made = or_no_memory([&] { return result<core::operation*>(start()); });
  if (made) {
    penstock::operation begun(*made);
    const std::lock_guard guard(lock_);
    if (at_ == next) under_way_ = std::move(begun);
    if (stopped_) under_way_.cancel();
  } else {
    complete({0, made.error()});
  }
  release();
}

// room is user code, so it does not run on the receiving thread.
void posted_receive::begin() {
  auto options = options_;
  options.calls_at_once = !room_;
  auto posted = room_ ? nullptr : from_->prepare_posting(targets_);
  if (posted != nullptr) posted->told = this;
  go_on(stage::awaits, [&] {
    return from_->next(
        into_, options, [this](const io_result& outcome) { come(outcome); }, std::move(posted));
  });
}

void posted_receive::come(const io_result& outcome) noexcept {
  if (!outcome.ok() || into_.core()->pushed) {
    complete(outcome);
    return;
  }
  auto problem = or_no_memory([&]() -> status {
    if (!room_) return {};
    auto room = room_(into_);
    if (!room) return room.error();
    targets_ = *std::move(room);
    return {};
  });
  if (!problem.ok()) {
    const auto message = into_.core();
    message->pipe->no_room_for(*message, problem);
    complete({0, problem});
    return;
  }
  auto options = options_;
  options.calls_at_once = true;
  go_on(stage::receives,
        [&] { return session::receive(into_.core(), std::move(targets_), options, [this](const io_result& ended) { complete(ended); }); });
}

void posted_receive::end_queued() {
  const std::lock_guard guard(lock_);
  stopped_ = true;
  under_way_.cancel();
}

}  // namespace penstock::pipes
