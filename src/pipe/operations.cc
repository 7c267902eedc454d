#include "pipe/operations.hpp"

#include <algorithm>

namespace penstock::pipes {

void next_operation::hand_over() noexcept {
  if (come != nullptr) *into = incoming_message(std::move(come));
}

bool receive_operation::needs_other_end() {
  return std::any_of(by.begin(), by.end(),
                     [&](auto* each) { return each != nullptr && !each->of().reads_memory() && each->delivery_of(*this).parts() > 0; });
}

bool receive_operation::reads_memory() const noexcept {
  return std::any_of(by.begin(), by.end(), [](const auto* each) { return each != nullptr && each->of().reads_memory(); });
}

}  // namespace penstock::pipes
