#include "remote/cache/cache_threads.hpp"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::source::remote {

void cache_threads::rest() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& each : threads_) each.join();
  const std::lock_guard guard(lock_);
  threads_.clear();
  stopping_ = false;
}

status cache_threads::ready() {
  const std::lock_guard guard(lock_);
  return start();
}

// Call with the lock held.
status cache_threads::start() {
  while (threads_.size() < count) {
    try {
      threads_.reserve(count);
      threads_.emplace_back(&cache_threads::loop, this);
    } catch (const std::system_error& problem) {
      return threads_.empty() ? staging::no_worker(problem) : status();
    }
  }
  return {};
}

void cache_threads::push(cache_work& what) noexcept {
  const std::lock_guard guard(lock_);
  queue_.push_back(what);
  if (threads_.empty()) (void)or_no_memory([&] { return start(); });
  changed_.notify_one();
}

void cache_threads::later(cache_work& what, std::chrono::milliseconds pause) noexcept {
  const std::lock_guard guard(lock_);
  what.due_ = clock::now() + pause;
  late_.push_back(what);
  if (threads_.empty()) (void)or_no_memory([&] { return start(); });
  changed_.notify_one();
}

void cache_threads::hurry() noexcept {
  const std::lock_guard guard(lock_);
  while (auto* const each = late_.pop_front()) queue_.push_back(*each);
  changed_.notify_all();
}

bool cache_threads::stopping() const noexcept {
  const std::lock_guard guard(lock_);
  return stopping_;
}

// Queues delayed work that is due, or all delayed work when stopping, and returns the next item.
cache_work* cache_threads::take_due(clock::time_point now) noexcept {
  auto due = late_.take_if([&](const cache_work& each) { return stopping_ || each.due_ <= now; });
  while (auto* const each = due.pop_front()) queue_.push_back(*each);
  return queue_.pop_front();
}

void cache_threads::loop() {
  staging::become_worker("penstock-node");
  std::unique_lock guard(lock_);
  for (;;) {
    if (auto* const next = take_due(clock::now()); next != nullptr) {
      if (!queue_.empty()) changed_.notify_one();
      guard.unlock();
      next->run();
      guard.lock();
      continue;
    }
    if (stopping_) return;
    if (late_.empty()) {
      changed_.wait(guard);
      continue;
    }
    auto first = clock::time_point::max();
    for (const auto* each = &late_.front(); each != nullptr; each = each->next_) first = std::min(first, each->due_);
    changed_.wait_until(guard, first);
  }
}

}  // namespace penstock::source::remote
