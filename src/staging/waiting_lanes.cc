#include "staging/waiting_lanes.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {

namespace {

constexpr std::chrono::seconds longest_idle{5};
// For each of up to 256 threads that only read. Libraries may also keep per-thread data in it.
constexpr std::size_t stack_bytes = std::size_t{1} << 20;

}  // namespace

void waiting_lanes::rest() {
  std::vector<pthread_t> last;
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
    last.swap(threads_);
    last.insert(last.end(), gone_.begin(), gone_.end());
    gone_.clear();
  }
  alarm_.notify_all();
  join(last);
  const std::lock_guard guard(lock_);
  stopping_ = false;
}

void waiting_lanes::join(std::vector<pthread_t>& gone) noexcept {
  for (const auto each : gone) pthread_join(each, nullptr);
  gone.clear();
}

unsigned waiting_lanes::most_at_work() const noexcept { return stopping_ ? most_ : std::min(most_, times_.at_once()); }

void waiting_lanes::push_or_run(work_list& list, const work_chain& works) {
  if (works.count == 0) return;
  if (or_no_memory([&] { return ready(); }).ok()) {
    queue_.push(list, *works.first, *works.last, works.count);
    const std::lock_guard guard(lock_);
    call();
    return;
  }
  for (auto* item = works.first; item != nullptr;) {
    auto* next = item->next_work;
    (void)item->run();
    item = next;
  }
}

bool waiting_lanes::help(work_list& list) {
  work* item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

// Ensures that a thread exists. Error: out_of_memory.
status waiting_lanes::ready() {
  if (auto problem = copies_.ready(); !problem.ok()) return problem;
  const std::lock_guard guard(lock_);
  return threads_.empty() ? start() : status();
}

// Call with the lock held.
status waiting_lanes::start() {
  threads_.reserve(most_);
  gone_.reserve(most_);  // an exiting thread must not allocate
  join(gone_);
  pthread_attr_t how;
  if (const int error = pthread_attr_init(&how); error != 0) return status::from_errno(error, "starting a waiting thread");
  pthread_t made{};
  (void)pthread_attr_setstacksize(&how, stack_bytes);
  const int error = pthread_create(&made, &how, &waiting_lanes::enter, this);
  pthread_attr_destroy(&how);
  if (error != 0) return {errc::out_of_memory, "starting a waiting thread", error_domain::os, error};
  threads_.push_back(made);
  return {};
}

// Call with the lock held. Wakes an idle thread or starts a new one. Each thread that takes a work item wakes the next.
void waiting_lanes::call() noexcept {
  if (!has_work()) return;
  if (idle_ > 0) {
    alarm_.notify_one();
  } else if (!stopping_ && threads_.size() < most_at_work()) {
    (void)or_no_memory([&] { return start(); });  // the running threads continue
  }
}

void* waiting_lanes::enter(void* lanes) {
  become_worker("penstock-wait");
  static_cast<waiting_lanes*>(lanes)->loop();
  return nullptr;
}

void waiting_lanes::loop() {
  for (std::unique_lock guard(lock_);;) {
    if (work* item = has_work() ? queue_.take() : nullptr) {
      ++busy_;
      call();
      guard.unlock();
      (void)item->run();
      guard.lock();
      --busy_;
      if (stopping_) alarm_.notify_all();
      continue;
    }
    if (stopping_ && queue_.size() == 0) return;
    if (queue_.size() > 0) times_.held_back();
    ++idle_;
    const bool called = alarm_.wait_for(guard, longest_idle, [this] { return has_work() || (stopping_ && queue_.size() == 0); });
    --idle_;
    if (called) continue;
    // A later push starts a new thread.
    const auto me = std::find(threads_.begin(), threads_.end(), pthread_self());
    threads_.erase(me);
    gone_.push_back(pthread_self());
    return;
  }
}

}  // namespace penstock::staging
