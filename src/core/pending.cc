#include "core/pending.hpp"

#include <utility>

#include "core/engine_core.hpp"
#include "staging/worker.hpp"

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
  const bool calls_back = has_callback();
  if (calls_back) {
    callback_work_ = std::make_unique<callback_work>(*this);
    retain();
  }
  settle(std::move(outcome));
  if (calls_back) run_soon(*engine_, callback_work_->list, *callback_work_);
  release();
}

void pending::settle(io_result outcome) {
  outcome_ = std::move(outcome);
  const std::lock_guard guard(lock_);
  done_.store(true, std::memory_order_release);
  ended_.notify_all();
}

void pending::call_back() { std::exchange(callback_, {})(outcome_); }

void pending::run_soon(engine_core& engine, staging::work_list& list, staging::work& item) {
  if (engine.forked() || !engine.lanes().ready().ok()) {
    (void)item.run();  // there are no threads, as in a forked child
  } else {
    engine.lanes().push_urgent(list, item);
  }
}

bool pending::callback_work::run() {
  auto& owner = owner_;
  owner.call_back();
  owner.release();
  return true;
}

void pending::wait(std::chrono::microseconds spin) { (void)wait_until(std::chrono::steady_clock::time_point::max(), spin); }

bool pending::wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin) {
  using clock = std::chrono::steady_clock;
  auto& copies = engine_->feeders();
  staging::feeders::watch watch;
  const auto began = clock::now();
  while (!done()) {
    const auto now = clock::now();
    if (now >= when || engine_->forked()) return false;
    if (!watch) watch = copies.try_watch();
    if (copies.pump()) continue;
    auto& lanes = engine_->lanes();
    if (lanes.without_threads() && lanes.help_urgent()) continue;
    if (now - began < spin) {
      staging::relax();
    } else if (watch && copies.outstanding()) {
      staging::nap();
    } else if (lanes.without_threads()) {
      std::unique_lock guard(lock_);
      ended_.wait_for(guard, std::min<clock::duration>(std::chrono::milliseconds(1), when - now), [this] { return done(); });
    } else {
      watch.end();
      std::unique_lock guard(lock_);
      if (when == clock::time_point::max()) {
        ended_.wait(guard, [this] { return done(); });
      } else {
        ended_.wait_until(guard, when, [this] { return done(); });
      }
    }
  }
  if (engine_->forked()) return true;  // the lock may have been taken when the process forked
  const std::lock_guard guard(lock_);
  return true;
}

}  // namespace penstock::core
