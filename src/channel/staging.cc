#include "channel/staging.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "sys/memory_share.hpp"

namespace penstock::channel {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t usual_inbox_bytes = std::uint64_t{384} << 20;

}  // namespace

pipe_staging::pipe_staging(core::runtime& with)
    : sending_(with.kernel(), pullers_),
      receiving_(with.kernel(), pullers_),
      inboxes_(sys::share_of_memory(with.kernel(), usual_inbox_bytes)),
      pullers_(std::clamp(with.cores() / 2, 1U, 8U), 0us, nullptr, "penstock-pl"),
      mapper_(1, 0us, nullptr, "penstock-pm") {}

pipe_staging& pipe_staging::of(core::runtime& with) {
  return static_cast<pipe_staging&>(
      with.beside([](core::runtime& by) -> std::unique_ptr<core::beside_files> { return std::make_unique<pipe_staging>(by); }));
}

core::beside_files::pinned pipe_staging::pinned_now() const {
  const auto landed = sending_.pinned_bytes() + receiving_.pinned_bytes();  // never decreases
  return {inboxes_.used_bytes.load() + landed, inboxes_.peak_bytes.load() + landed};
}

void pipe_staging::add(const std::shared_ptr<under_way_teller>& pipe) {
  const std::lock_guard guard(lock_);
  pipes_.emplace(pipe.get(), pipe);
}

void pipe_staging::remove(under_way_teller& pipe) noexcept {
  const std::lock_guard guard(lock_);
  pipes_.erase(&pipe);
}

void pipe_staging::add_under_way(std::vector<request_info>& to) {
  std::vector<std::shared_ptr<under_way_teller>> pipes;  // released after the lock: dropping the last reference to a pipe closes it
  {
    const std::lock_guard guard(lock_);
    pipes.reserve(pipes_.size());
    for (const auto& [key, pipe] : pipes_) pipes.push_back(pipe.lock());
  }
  for (const auto& pipe : pipes) {
    if (pipe != nullptr) pipe->add_under_way(to);
  }
}

std::chrono::microseconds pipe_spin(const core::runtime& with) noexcept { return !with.few_cores() ? 200us : 50us; }

}  // namespace penstock::channel
