#include "core/pending.hpp"

#include <utility>

#include "core/engine_core.hpp"

namespace penstock::core {

pending::pending(std::shared_ptr<engine_core> engine) : engine_(std::move(engine)) {}
pending::~pending() = default;

void pending::release() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

status pending::stop_reason() const {
  if (cancelled_.load(std::memory_order_relaxed)) return {errc::cancelled, "cancelled"};
  if (deadline_ != deadline_clock::time_point::max() && deadline_clock::now() >= deadline_)
    return {errc::timed_out, "the deadline has passed"};
  return {};
}

void pending::complete(io_result outcome) {
  outcome_ = std::move(outcome);
  if (callback_) {
    // The work's reference is the one that the running request held.
    callback_work_ = std::make_unique<callback_work>(*this);
    auto& lanes = engine_->lanes();
    retain();
    {
      const std::lock_guard guard(lock_);
      done_.store(true, std::memory_order_release);
      ended_.notify_all();
    }
    if (engine_->forked() || !lanes.ready().ok()) {
      (void)callback_work_->run();  // there are no threads, as in a forked child
    } else {
      lanes.push_urgent(callback_work_->list, *callback_work_);
    }
    release();
    return;
  }
  {
    const std::lock_guard guard(lock_);
    done_.store(true, std::memory_order_release);
    ended_.notify_all();
  }
  release();
}

bool pending::callback_work::run() {
  auto& owner = owner_;
  const auto callback = std::exchange(owner.callback_, {});
  callback(owner.outcome_);
  owner.release();
  return true;
}

void pending::wait(std::chrono::microseconds spin) { (void)wait_until(std::chrono::steady_clock::time_point::max(), spin); }

bool pending::wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin) {
  using clock = std::chrono::steady_clock;
  auto& copies = engine_->feeders();
  const auto began = clock::now();
  while (!done()) {
    const auto now = clock::now();
    if (now >= when || engine_->forked()) return false;
    if (copies.pump()) continue;
    if (auto& lanes = engine_->lanes(); lanes.without_threads() && lanes.help_urgent()) continue;
    if (now - began < spin) {
      staging::relax();
      continue;
    }
    if (copies.outstanding() && copies.try_watch()) {
      staging::nap();
      copies.unwatch();
      continue;
    }
    std::unique_lock guard(lock_);
    ended_.wait_for(guard, std::min<clock::duration>(std::chrono::milliseconds(1), when - now), [this] { return done(); });
  }
  if (engine_->forked()) return true;  // the lock may have been taken when the process forked
  const std::lock_guard guard(lock_);
  return true;
}

}  // namespace penstock::core
