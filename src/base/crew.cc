#include "base/crew.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/own_thread.hpp"

namespace penstock {

namespace {

using clock = std::chrono::steady_clock;

constexpr unsigned first_threads = 16;  // for cached files on two cores, within 5% of two threads
constexpr unsigned most_threads = 128;
// The number is changed after at least this long, and once each thread has finished a step on average.
constexpr std::chrono::milliseconds shortest_trial{10};
constexpr double least_gain = 1.15;       // of twice as many threads
constexpr unsigned most_idle_trials = 2;  // in a row without a gain, because one may be noise

// Returns how often the calling thread has waited for the kernel or a lock.
long waits_so_far() noexcept {
  rusage used{};
  return ::getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nvcsw : 0;
}

class crew {
 public:
  crew(unsigned most, const std::function<bool(bool)>& step) : most_(std::max(most, 1U)), step_(step) {}

  void run() {
    add_threads(std::min(most_, first_threads));
    work(true);
    for (std::size_t i = 0;; ++i) {
      std::thread next;
      {
        const std::lock_guard guard(lock_);
        if (i == threads_.size()) break;
        next = std::move(threads_[i]);
      }
      next.join();
    }
  }

 private:
  // Until there are this many threads, including the calling one.
  void add_threads(unsigned count) {
    const std::lock_guard guard(lock_);
    try {
      threads_.reserve(most_);
      while (threads_.size() + 1 < count) {
        threads_.emplace_back([this] {
          set_up_own_thread("penstock-crew");
          work(false);
        });
      }
    } catch (const std::system_error&) {
      settled_ = true;
    } catch (const std::bad_alloc&) {
      settled_ = true;
    }
    count_ = static_cast<unsigned>(threads_.size()) + 1;
  }

  void work(bool is_caller) {
    for (long before = waits_so_far(); step_(is_caller);) {
      if (settled_.load(std::memory_order_relaxed)) continue;
      const long now = waits_so_far();
      waits_.fetch_add(static_cast<std::size_t>(now - before), std::memory_order_relaxed);
      before = now;
      if (steps_.fetch_add(1, std::memory_order_relaxed) + 1 >= count_) end_trial();
    }
  }

  // Doubles the threads if most steps waited, until more threads are no gain.
  void end_trial() {
    const std::unique_lock guard(trial_, std::try_to_lock);
    const auto now = clock::now();
    if (!guard || now - began_ < shortest_trial || settled_) return;
    const auto steps = steps_.exchange(0), waits = waits_.exchange(0);
    const double rate = static_cast<double>(steps) / std::chrono::duration<double>(now - began_).count();
    began_ = now;
    if (waits * 2 < steps) return;
    idle_trials_ = rate > rate_ * least_gain ? 0 : idle_trials_ + 1;
    rate_ = std::max(rate, rate_);
    if (idle_trials_ == most_idle_trials || count_ >= most_) {
      settled_ = true;
    } else {
      add_threads(std::min(most_, count_ * 2));
    }
  }

  const unsigned most_;
  const std::function<bool(bool)>& step_;
  std::atomic<std::size_t> steps_{0}, waits_{0};
  std::atomic<unsigned> count_{1};
  std::atomic<bool> settled_{false};  // the number does not change any more
  std::mutex trial_;                  // guards the next three
  clock::time_point began_ = clock::now();
  double rate_ = 0;  // the most steps per second of a trial
  unsigned idle_trials_ = 0;
  std::mutex lock_;  // guards threads_
  std::vector<std::thread> threads_;
};

}  // namespace

unsigned most_crew_threads(unsigned descriptors) noexcept {
  rlimit open_files{};
  if (::getrlimit(RLIMIT_NOFILE, &open_files) != 0) return most_threads;
  return static_cast<unsigned>(std::clamp<rlim_t>(open_files.rlim_cur / descriptors, 1, most_threads));
}

void run_in_crew(unsigned most, const std::function<bool(bool is_caller)>& step) { crew(most, step).run(); }

}  // namespace penstock
