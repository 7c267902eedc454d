#include "core/deadlines.hpp"

#include <system_error>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::core {

void deadlines::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void deadlines::rest() {
  stop();
  std::multimap<deadline_clock::time_point, timed_ref<timed>> left;
  {
    const std::lock_guard guard(lock_);
    stopping_ = false;
    left.swap(watched_);
  }
  for (const auto& each : left) each.second->end_queued();
}

status deadlines::watch(timed& request) {
  return or_no_memory([&]() -> status {
    const std::lock_guard guard(lock_);
    if (!thread_.joinable()) {
      try {
        thread_ = std::thread(&deadlines::loop, this);
      } catch (const std::system_error& problem) {
        return staging::no_worker(problem);
      }
    }
    const auto added = watched_.emplace(request.deadline(), timed_ref(request));
    if (added == watched_.begin()) changed_.notify_one();
    return {};
  });
}

void deadlines::forget(timed& request) noexcept {
  timed_ref<timed> forgotten;  // released after the lock
  const std::lock_guard guard(lock_);
  auto [at, end] = watched_.equal_range(request.deadline());
  while (at != end && at->second.get() != &request) ++at;
  if (at == end) return;  // its deadline has passed
  forgotten = std::move(at->second);
  watched_.erase(at);
}

void deadlines::loop() {
  staging::become_worker("penstock-time");
  std::unique_lock guard(lock_);
  for (;;) {
    if (stopping_) return;
    if (watched_.empty()) {
      changed_.wait(guard);
      continue;
    }
    const auto next = watched_.begin();
    if (const auto when = next->first; deadline_clock::now() < when) {
      changed_.wait_until(guard, when);
      continue;
    }
    auto late = std::move(next->second);
    watched_.erase(next);
    guard.unlock();
    late->end_queued();
    late = {};
    guard.lock();
  }
}

}  // namespace penstock::core
