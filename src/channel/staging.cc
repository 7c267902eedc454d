#include "channel/staging.hpp"

#include <algorithm>
#include <memory>

namespace penstock::channel {

using namespace std::chrono_literals;

namespace {

// Shared memory counts towards a container's limit: of little memory inboxes take a quarter.
std::size_t most_inbox_bytes(sys::kernel& kernel) {
  constexpr std::size_t usual = std::size_t{384} << 20;
  const auto memory = kernel.memory_now();
  return memory ? static_cast<std::size_t>(std::min<std::uint64_t>(usual, memory->total_bytes / 4)) : usual;
}

}  // namespace

pipe_staging::pipe_staging(core::runtime& with)
    : sending_(with.kernel(), pullers_),
      receiving_(with.kernel(), pullers_),
      inboxes_(most_inbox_bytes(with.kernel())),
      pullers_(std::clamp(with.cores() / 2, 1U, 8U), 0us, nullptr, "penstock-pl"),
      mapper_(1, 0us, nullptr, "penstock-pm") {}

pipe_staging& pipe_staging::of(core::runtime& with) {
  return static_cast<pipe_staging&>(
      with.beside([](core::runtime& by) -> std::unique_ptr<core::beside_files> { return std::make_unique<pipe_staging>(by); }));
}

core::beside_files::pinned pipe_staging::pinned_now() const {
  const auto landed = sending_.pinned_bytes() + receiving_.pinned_bytes();  // never less than before
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
  std::vector<std::shared_ptr<under_way_teller>> pipes;  // outlive the lock: who lets go of the last of one ends it
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
