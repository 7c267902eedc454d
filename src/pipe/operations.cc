#include "pipe/operations.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::pipes {

void next_operation::hand_over() noexcept {
  if (come != nullptr) *into = incoming_message(std::move(come));
}

bool read_part::run() {
  auto& op = *of;
  if (!op.stopping.load()) {
    auto problem = or_no_memory([&] { return op.owner().read(op, *this); });
    if (!problem.ok()) op.fail(problem);
  }
  op.parts_ended(1);
  return true;
}

void receive_operation::fail(const status& why) noexcept {
  stopping.store(true);
  const std::lock_guard guard(error_lock_);
  if (error_.ok()) error_ = why;
}

status receive_operation::error() noexcept {
  const std::lock_guard guard(error_lock_);
  return error_;
}

std::list<received_piece>::iterator receive_operation::asked_for(std::uint64_t tensor, std::uint32_t wanted) noexcept {
  return std::find_if(asked.begin(), asked.end(),
                      [&](const received_piece& each) { return !each.striped && each.tensor == tensor && each.wanted == wanted; });
}

std::list<received_piece>::iterator receive_operation::asked_striped(std::uint64_t tensor, std::uint32_t number) noexcept {
  return std::find_if(asked.begin(), asked.end(),
                      [&](const received_piece& each) { return each.striped && each.tensor == tensor && each.number == number; });
}

void receive_operation::parts_ended(std::uint64_t count) noexcept {
  if (count > 0 && parts_left.fetch_sub(count, std::memory_order_acq_rel) == count) owner().all_ended(*this);
}

}  // namespace penstock::pipes
