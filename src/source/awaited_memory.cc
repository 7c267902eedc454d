#include "source/awaited_memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::source {

namespace {

constexpr unsigned awaited_at_once = 8;  // the number of fills, and thus of slabs, that wait for one tensor

}  // namespace

awaited_memory::awaited_memory(std::string name, std::uint64_t length)
    : source(std::move(name)), length_(length), memory_(std::make_unique_for_overwrite<std::byte[]>(length)) {
  facts_ = {.device = far_device, .in_memory = true, .writable = false, .fills_at_once = awaited_at_once};
  direct_problem_ = {errc::unsupported, "the data is in memory"};
}

awaited_memory::~awaited_memory() { (void)close(); }

void awaited_memory::come(const status& outcome) noexcept {
  far_fill* waiting = nullptr;
  {
    const std::lock_guard guard(lock_);
    if (std::exchange(has_come_, true)) return;
    outcome_ = outcome;
    waiting = std::exchange(waiting_, nullptr);
  }
  while (waiting != nullptr) {
    auto* const next = waiting->next_of_source;  // tell() may destroy the fill
    serve(*waiting);
    waiting = next;
  }
}

io_result awaited_memory::drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/,
                                const drain_manner& /*how*/) {
  return {0, {errc::unsupported, "this memory is read-only"}};
}

void awaited_memory::begin_fill(far_fill& what) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (!has_come_) {
      what.next_of_source = waiting_;
      what.previous_of_source = nullptr;
      if (waiting_ != nullptr) waiting_->previous_of_source = &what;
      waiting_ = &what;
      return;
    }
  }
  serve(what);
}

void awaited_memory::cancel(far_fill& what) noexcept {
  {
    const std::lock_guard guard(lock_);
    auto* each = waiting_;
    while (each != nullptr && each != &what) each = each->next_of_source;
    if (each == nullptr) return;  // tell() has been called or is being called
    (what.previous_of_source != nullptr ? what.previous_of_source->next_of_source : waiting_) = what.next_of_source;
    if (what.next_of_source != nullptr) what.next_of_source->previous_of_source = what.previous_of_source;
  }
  what.tell({0, {errc::cancelled, "cancelled"}});
}

status awaited_memory::close() {
  come({errc::closed, "the memory will never be filled"});
  return {};
}

void awaited_memory::serve(far_fill& what) const noexcept {
  if (!outcome_.ok()) {
    what.tell({0, outcome_});
    return;
  }
  const auto there = std::min(what.length(), length_ - std::min(what.offset(), length_));
  std::memcpy(what.target(), memory_.get() + what.offset(), there);
  what.tell({there, {}});
}

}  // namespace penstock::source
