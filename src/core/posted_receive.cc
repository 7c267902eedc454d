#include "core/posted_receive.hpp"

#include <vector>

#include "base/no_memory.hpp"

namespace penstock::core {

// Its callback may come before the operation is kept, and may be what ends this.
template <class Start>
void posted_receive::go_on(Start start) {
  retain();
  auto begun = start();
  {
    const std::lock_guard guard(lock_);
    under_way_ = std::move(begun);
    if (stopped_) under_way_.cancel();
  }
  release();
}

void posted_receive::begin(const penstock::pipe& from) {
  go_on([&] { return from.next(into_, options_, [this](const io_result& outcome) { come(outcome); }); });
}

void posted_receive::come(const io_result& outcome) noexcept {
  if (!outcome.ok()) {
    complete(outcome);
    return;
  }
  std::vector<incoming_target> targets;
  auto problem = or_no_memory([&]() -> status {
    auto room = room_(into_);
    if (!room) return room.error();
    targets = *std::move(room);
    return {};
  });
  if (!problem.ok()) {
    complete({0, problem});
    return;
  }
  go_on([&] { return into_.receive(std::move(targets), options_, [this](const io_result& ended) { complete(ended); }); });
}

void posted_receive::end_queued() {
  const std::lock_guard guard(lock_);
  stopped_ = true;
  under_way_.cancel();
}

}  // namespace penstock::core
