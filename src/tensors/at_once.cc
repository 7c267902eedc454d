#include "tensors/at_once.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "base/own_thread.hpp"

namespace penstock::tensors {

namespace {

using step_function = std::function<status(std::size_t, const stop_function&)>;

class concurrent_steps {
 public:
  concurrent_steps(std::size_t count, const stop_function& stop_requested, const step_function& step)
      : stop_requested_(stop_requested), step_(step), failed_(count) {}

  status run() {
    std::vector<std::jthread> threads;
    try {
      const std::size_t most = std::min(failed_.load(), most_steps_at_once);
      threads.reserve(most);
      while (threads.size() + 1 < most) threads.emplace_back([this] { run_in_thread(); });
    } catch (const std::system_error&) {  // fewer threads do the same work
    } catch (const std::bad_alloc&) {
    }
    work(true);
    wait_for_others(threads.size());
    return std::move(error_);
  }

 private:
  void run_in_thread() noexcept {
    set_up_own_thread("penstock-open");
    work(false);
    const std::lock_guard guard(lock_);
    ++ended_;
    changed_.notify_one();
  }
  void work(bool is_caller) {
    for (std::size_t i = next_++; i < failed_; i = next_++) {
      if (status error = or_no_memory([&] { return step_(i, stop_of(i, is_caller)); }); !error.ok()) fail(i, std::move(error));
    }
  }
  stop_function stop_of(std::size_t number, bool is_caller) {
    return [this, number, is_caller] {
      if (is_caller) ask();
      return stopped_ || failed_ < number;
    };
  }
  void ask() {
    if (!stopped_ && stop_requested_ && stop_requested_()) stopped_ = true;
  }
  void fail(std::size_t number, status error) noexcept {
    const std::lock_guard guard(lock_);
    if (number >= failed_) return;
    failed_ = number;
    error_ = std::move(error);
  }
  void wait_for_others(std::size_t threads) {
    constexpr std::chrono::milliseconds tick{50};
    std::unique_lock guard(lock_);
    while (!changed_.wait_for(guard, tick, [&] { return ended_ == threads; })) {
      guard.unlock();
      ask();
      guard.lock();
    }
  }

  const stop_function& stop_requested_;
  const step_function& step_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> failed_;  // the lowest number of a failed step; initially the number of steps. Written under lock_.
  std::atomic<bool> stopped_{false};
  std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  std::size_t ended_ = 0;  // threads
  status error_;
};

}  // namespace

status run_at_once(std::size_t count, const stop_function& stop_requested, const step_function& step) {
  return concurrent_steps(count, stop_requested, step).run();
}

}  // namespace penstock::tensors
