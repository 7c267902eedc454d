#include "path/far_read.hpp"

#include <utility>

namespace penstock::path {

far_read::far_read(job& item, memory into, arrival goes_on)
    : item_(&item), memory_(std::move(into)), goes_on_(goes_on), turns_(item.queues->turns->shared_from_this()) {
  aim(memory_.data(), item.length, item.offset);
  from_far = true;
}

// The read does not complete before begun(), and the source is not closed before the job ends. Therefore begun() must come after all uses
// of the source.
void far_read::begin(job& item, memory into, arrival goes_on) {
  auto* const made = new far_read(item, std::move(into), goes_on);
  made->turns_->began(item.length);
  item.file->begin_fill(*made);
  if (!item.queues->far.add(*made)) made->leave();
  made->begun();
}

void far_read::ended(io_result outcome) noexcept {
  const auto turns = turns_;
  const auto bytes = length();
  got_ = std::move(outcome);
  if (auto seen = fate::open; fate_.compare_exchange_strong(seen, fate::arrived)) {
    item_->queues->lanes->push_urgent(item_->queues->urgent_works, *this);
  } else {
    release();
  }
  turns->ended(bytes);
}

bool far_read::run() {
  auto& item = *item_;
  item.queues->far.remove(*this);
  auto into = std::move(memory_);
  auto got = std::move(got_);
  const auto goes_on = goes_on_;
  release();
  if (auto stop = item.owner->stopped(); !stop.ok()) {
    item.owner->finished(item, 0, stop.with_context(item.path->name()));
  } else {
    goes_on(item, std::move(into), std::move(got));
  }
  return true;
}

void far_read::leave() noexcept {
  if (auto seen = fate::open; !fate_.compare_exchange_strong(seen, fate::left)) return;
  auto& item = *item_;
  item.file->cancel(*this);
  item.owner->finished(item, 0, item.owner->stopped().with_context(item.path->name()));
}

}  // namespace penstock::path
