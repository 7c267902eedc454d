#include "core/operation.hpp"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::core {

namespace {

// The operation whose callback is running on this thread, or null.
[[gnu::tls_model("initial-exec")]] thread_local const operation* calling_back =
    nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// Created when the library is loaded, because they are returned at points where nothing may fail.
const status cancelled_before(errc::cancelled, "cancelled");
const status deadline_passed(errc::timed_out, "the deadline has passed");

}  // namespace

operation::operation(std::shared_ptr<core::runtime> with) : runtime_(std::move(with)) {}
operation::~operation() = default;

bool operation::done() const noexcept {
  const auto now = life_.load(std::memory_order_acquire);
  return now == life::done || (now == life::settled && calling_back == this);
}

// A thread that queues work for a request checks afterwards whether the request was stopped. Therefore either that thread ends the work, or
// this one finds it.
void operation::cancel() {
  cancelled_.store(true);
  if (runtime_ != nullptr && !runtime_->forked()) end_cancelled();
}

status operation::stop_reason() const noexcept {
  if (cancelled_.load()) return cancelled_before;
  if (deadline() != deadline_clock::time_point::max() && deadline_clock::now() >= deadline()) return deadline_passed;
  return {};
}

status operation::watch_deadline() {
  if (deadline() == deadline_clock::time_point::max()) return {};
  auto problem = runtime_->feeders().ready();  // the deadline thread may release the last reference to the engine
  if (problem.ok()) problem = runtime_->deadlines().watch(*this);
  deadline_watched_ = problem.ok();
  return problem;
}

void operation::complete(io_result outcome) noexcept {
  const bool calls_back = has_callback() && !calls_at_once_;
  const bool calls_at_once = has_callback() && calls_at_once_;
  if (calls_back) retain();
  settle(std::move(outcome));
  if (calls_at_once) call_back();
  if (calls_back) run_soon(*runtime_, callback_work_.list, callback_work_);
  release();
}

void operation::settle(io_result outcome) noexcept {
  if (deadline_watched_) runtime_->deadlines().forget(*this);
  outcome_ = std::move(outcome);
  range_.end();
  move_to(has_callback() ? life::settled : life::done);
}

void operation::move_to(life next) noexcept {
  const std::lock_guard guard(lock_);
  assert(life_.load() < next);
  life_.store(next, std::memory_order_release);
  if (next != life::done) return;
  in_flight_.end();
  ended_.notify_all();
}

void operation::call_back() noexcept {
  const auto* const outer = std::exchange(calling_back, this);
  // Destroy the callback before any thread is notified, because waiting threads may depend on an object that it holds.
  std::exchange(callback_, {})(outcome_);
  calling_back = outer;
  move_to(life::done);
}

void operation::run_soon(core::runtime& with, staging::work_list& list, staging::work& item) noexcept {
  // Start the watcher first. The callback thread may release the last reference to the engine, which the watcher then destroys.
  if (with.forked() || !with.feeders().ready().ok() || !with.callbacks().ready().ok()) {
    (void)item.run();  // there are no threads, as in a forked child
  } else {
    with.callbacks().push_urgent(list, item);
  }
}

bool operation::callback_work::run() {
  auto& owner = owner_;
  owner.call_back();
  owner.release();
  return true;
}

void operation::comes_soon() noexcept {
  const std::lock_guard guard(lock_);
  comes_soon_.store(true, std::memory_order_relaxed);
  ended_.notify_all();
}

namespace {

// Makes the calling thread poll an operation while the object exists.
class polling {
 public:
  explicit polling(operation& of) noexcept : of_(of) {}
  polling(const polling&) = delete;
  polling& operator=(const polling&) = delete;
  ~polling() { set(false); }
  [[nodiscard]] bool is_on() const noexcept { return is_; }
  void set(bool now) noexcept {
    if (now != std::exchange(is_, now)) now ? of_.begin_polling() : of_.end_polling();
  }

 private:
  operation& of_;
  bool is_ = false;
};

}  // namespace

void operation::wait(std::chrono::microseconds spin) { (void)wait_until(std::chrono::steady_clock::time_point::max(), spin); }

bool operation::wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin) {
  using clock = std::chrono::steady_clock;
  if (runtime_ == nullptr) return true;
  auto& copies = runtime_->feeders();
  staging::feeders::watch watch;
  auto began = clock::now();
  // A thread that waits inside a callback blocks the thread that runs other callbacks.
  const bool is_called_back = calling_back != nullptr;
  const bool for_ever = when == clock::time_point::max();
  polling polls(*this);
  std::optional<clock::time_point> looks_on_since;
  while (!done()) {
    const auto now = clock::now();
    if (now >= when || runtime_->forked()) return false;
    if (!watch) watch = copies.try_watch();
    if (!looks_on_since && comes_soon_.load(std::memory_order_relaxed)) looks_on_since = now;
    polls.set(now - began < spin || looks_on_since);
    if (polls.is_on() && poll()) {
      began = now;  // there may be more work
      continue;
    }
    if (copies.pump() || (is_called_back && runtime_->callbacks().help_urgent())) continue;
    auto* const helpless = for_ever ? lanes_without_threads() : nullptr;
    if (helpless != nullptr && helpless->help_urgent()) continue;
    if (now - began < spin) {
      staging::relax();
    } else if (looks_on_since) {
      staging::nap(std::min<clock::duration>((now - *looks_on_since) / 64, when - now));
    } else if (watch && copies.outstanding()) {
      staging::nap();
    } else if (is_called_back || helpless != nullptr || !copies.has_watcher()) {
      std::unique_lock guard(lock_);
      ended_.wait_for(guard, std::min<clock::duration>(std::chrono::milliseconds(1), when - now), [&] { return done() || comes_soon_; });
    } else {
      watch.end();
      std::unique_lock guard(lock_);
      if (for_ever) {
        ended_.wait(guard, [this] { return done() || comes_soon_; });
      } else {
        ended_.wait_until(guard, when, [this] { return done() || comes_soon_; });
      }
    }
  }
  if (runtime_->forked()) return true;  // another thread may have held the lock at the time of the fork
  const std::lock_guard guard(lock_);
  return true;
}

namespace {

class refused_request final : public operation {
 public:
  explicit refused_request(const status& why) : operation(nullptr) { settle({0, why}); }
};

// Created when the library is loaded; never destroyed, because handles may outlive static objects.
refused_request* const spare = new refused_request(no_memory());

}  // namespace

operation* refused(const status& why) noexcept {
  return or_without_memory([&]() -> operation* { return new refused_request(why); },
                           []() -> operation* {
                             spare->retain();
                             return spare;
                           });
}

}  // namespace penstock::core
