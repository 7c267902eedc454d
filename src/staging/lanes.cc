#include "staging/lanes.hpp"

#include <array>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {

lanes::lanes(unsigned count, std::chrono::microseconds spin, feeders* copies, const char* name)
    : count_(count), spin_(spin), copies_(copies), name_(name) {}

lanes::~lanes() {
  {
    const std::lock_guard guard(lock_);
    stopping_.store(true);
  }
  alarm_.notify_all();
  for (auto& thread : threads_) thread.join();
}

status lanes::ready() {
  if (started_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(lock_);
  if (started_.load()) return {};
  if (copies_ != nullptr) {
    if (auto problem = copies_->ready(); !problem.ok()) return problem;
  }
  status problem;
  try {
    threads_.reserve(count_);
    while (threads_.size() < count_) threads_.emplace_back(&lanes::loop, this, static_cast<unsigned>(threads_.size()));
  } catch (const std::system_error& refused) {
    problem = {errc::out_of_memory, std::string("starting a worker thread: ") + refused.what(), error_domain::os, refused.code().value()};
  } catch (const std::bad_alloc&) {
    problem = no_memory();
  }
  // Fewer lanes are slower, none is a failure.
  if (threads_.empty()) return problem;
  started_.store(true, std::memory_order_release);
  return {};
}

status lanes::push(work_list& list, work& first, work& last, std::size_t count) {
  if (auto problem = ready(); !problem.ok()) return problem;
  queue_.push(list, first, last, count);
  wake(count);
  return {};
}

bool lanes::help(work_list& list) {
  work* item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

bool lanes::help_urgent(work_list& list) {
  work* item = urgent_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void lanes::push_urgent(work_list& list, work& item) {
  (void)ready();  // without threads, whoever waits runs it
  urgent_.push(list, item, item, 1);
  wake(1);
}

bool lanes::help_urgent() {
  work* item = urgent_.take();
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

// Wakes up to two lanes. A burst wakes all without its submitter paying for each: whoever finds work wakes the next two.
void lanes::wake(std::size_t works) {
  const unsigned asleep = sleepers_.load();
  if (asleep == 0 || works == 0) return;
  // A sleeper that has checked for work holds the lock until it waits, so passing through the lock makes the signal count.
  { const std::lock_guard guard(lock_); }
  alarm_.notify_one();
  if (asleep > 1 && works > 1) alarm_.notify_one();
}

void lanes::sleep() {
  std::unique_lock guard(lock_);
  sleepers_.fetch_add(1);
  alarm_.wait(guard, [this] { return queue_.size() > 0 || urgent_.size() > 0 || stopping_.load(); });
  sleepers_.fetch_sub(1);
}

work* lanes::take() {
  if (work* item = urgent_.take()) return item;
  work* item = queue_.take();
  if (item != nullptr) wake(queue_.size());
  return item;
}

// True: there may be more to do at once. soon: copies are short right after work, and more work is near; later there is time.
bool lanes::look_after_copies(feeders::watch& watch, bool soon) {
  if (copies_ == nullptr || !copies_->outstanding()) return false;
  if (!watch) watch = copies_->try_watch();
  if (!watch) return false;
  if (!copies_->pump()) soon ? relax() : nap();
  return true;
}

void lanes::loop(unsigned index) {
  std::array<char, 16> name{};
  (void)std::snprintf(name.data(), name.size(), "%s%u", name_, index);
  become_worker(name.data());
  using clock = std::chrono::steady_clock;
  auto busy = clock::now();
  feeders::watch watch;
  for (;;) {
    if (work* item = take()) {
      watch.end();
      (void)item->run();
      if (copies_ != nullptr) copies_->pump();
      busy = clock::now();
      continue;
    }
    const bool soon = clock::now() - busy < spin_;
    if (look_after_copies(watch, soon)) continue;
    watch.end();
    const bool copying = copies_ != nullptr && copies_->outstanding();
    if (stopping_.load() && queue_.size() == 0 && urgent_.size() == 0 && !copying) return;
    if (soon) {
      relax();
    } else if (stopping_.load()) {
      nap();
    } else {
      sleep();
    }
  }
}

}  // namespace penstock::staging
