#include "core/pipe_operations.hpp"

#include <mutex>
#include <utility>

namespace penstock::core {

void next_operation::hand_over() noexcept {
  if (come != nullptr) *into = incoming_message(std::move(come));
}

bool pull_work::run() {
  auto& op = *of;
  op.pull(*this);
  op.piece_ended();
  return true;
}

void receive_operation::pull(const pull_work& piece) noexcept {
  if (stopping.load()) return;
  auto problem = owner().pull(*this, piece);
  if (problem.ok()) return;
  stopping.store(true);
  const std::lock_guard guard(error_lock);
  if (error.ok()) error = std::move(problem);
}

void receive_operation::piece_ended() noexcept {
  if (pieces_left.fetch_sub(1, std::memory_order_acq_rel) == 1) owner().pulled(*this);
}

}  // namespace penstock::core
