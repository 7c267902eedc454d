#include "source/source.hpp"

#include <cassert>
#include <condition_variable>
#include <mutex>

#include <fmt/format.h>

namespace penstock::source {

namespace {

class awaited_fill final : public far_fill {
 public:
  awaited_fill(std::byte* target, std::uint64_t length, std::uint64_t offset) noexcept { aim(target, length, offset); }
  io_result wait() {
    std::unique_lock guard(lock_);
    over_.wait(guard, [this] { return has_ended_; });
    return std::move(outcome_);
  }

 private:
  void ended(io_result outcome) noexcept override {
    const std::lock_guard guard(lock_);
    outcome_ = std::move(outcome);
    has_ended_ = true;
    over_.notify_one();  // under the lock: the waiting thread may destroy this once it has the lock
  }

  std::mutex lock_;  // guards the members below
  std::condition_variable over_;
  bool has_ended_ = false;
  io_result outcome_;
};

}  // namespace

void far_fill::aim(std::byte* target, std::uint64_t length, std::uint64_t offset) noexcept {
  assert(steps_.load() == 0);
  target_ = target;
  length_ = length;
  offset_ = offset;
  steps_.store(2);
}

void far_fill::tell(io_result outcome) noexcept {
  assert(outcome.bytes_done <= length_);
  outcome_ = std::move(outcome);
  step();
}

void far_fill::step() noexcept {
  const int before = steps_.fetch_sub(1, std::memory_order_acq_rel);
  assert(before == 1 || before == 2);
  if (before == 1) ended(std::move(outcome_));
}

io_result source::fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching /*by*/) {
  awaited_fill what(target, length, offset);
  begin_fill(what);
  what.begun();
  return what.wait();
}

std::shared_ptr<turnstile> source::turns(staging::lanes& by, turnstile::share& of) {
  return std::make_shared<turnstile>(by, of, [at_once = facts_.fills_at_once] { return at_once; });
}

status source::can_drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) {
  if (aligned(memory, length, offset) || cached_problem().ok()) return {};
  return {
      errc::invalid_argument,
      fmt::format(
          "the descriptor has O_DIRECT, and the file could not be opened without it, so memory, length and offset must be multiples of {}",
          direct_alignment)};
}

}  // namespace penstock::source
