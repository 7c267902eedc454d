#include "channel/inbox.hpp"

#include "base/no_memory.hpp"

namespace penstock::channel {

pinned_region::~pinned_region() {
  for (auto& each : by_) {
    if (auto* const session = each.load(); session != nullptr) (void)session->unpin(memory_.data());
  }
}

bool pinned_region::pin_for(const staging::link& via) {
  auto& by = by_[kind_of(via)];
  if (by.load() != nullptr) return true;
  const std::lock_guard guard(pinning_);
  if (std::exchange(tried_[kind_of(via)], true)) return by.load() != nullptr;
  if (via.session().pin(memory_.data(), memory_.size(), false).ok()) by.store(&via.session());
  return by.load() != nullptr;
}

std::shared_ptr<pipe_inbox> pipe_inbox::make(sys::peer& door, staging::pinned_budget& budget, sys::owned_descriptor& by) {
  if (!budget.reserve(bytes)) return nullptr;
  auto made = or_no_memory([&]() -> result<std::shared_ptr<pipe_inbox>> {
    auto region = door.make_region(bytes);
    if (!region) return region.error();
    by = std::move(region->by);
    return std::make_shared<pipe_inbox>(std::move(region->memory), budget);
  });
  if (made) return *std::move(made);
  budget.release(bytes);
  return nullptr;
}

std::optional<pipe_inbox::lent_slot> pipe_inbox::lend() {
  lent_slot lent;
  {
    const std::lock_guard guard(lock_);
    while (lent.number < slots && (held_[lent.number] || unanswered_[lent.number])) ++lent.number;
    if (lent.number == slots) return std::nullopt;
    held_[lent.number] = true;
  }
  const auto let_go = [inbox = shared_from_this(), number = lent.number](std::byte*) { inbox->let_go(number); };
  lent.memory = staging::landing::lease(region_.data() + lent.number * slot_bytes, let_go);
  const std::lock_guard guard(lock_);
  unanswered_[lent.number] = true;
  return lent;
}

bool pipe_inbox::answered(std::uint32_t number) {
  const std::lock_guard guard(lock_);
  return number < slots && std::exchange(unanswered_[number], false);
}

void pipe_inbox::let_go(std::uint32_t number) noexcept {
  const std::lock_guard guard(lock_);
  held_[number] = false;
}

}  // namespace penstock::channel
