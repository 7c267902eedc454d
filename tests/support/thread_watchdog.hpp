// Turns a hang into a failure that says where, like fault/watchdog.hpp, but from its own thread: it also works if the test's thread is
// stuck inside the kernel, where no signal handler runs. feed() restarts its timer. Several may exist at the same time.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "support/thread_stacks.hpp"

namespace penstock::testing {

class thread_watchdog {
 public:
  // tell: called before the process aborts, to print more information.
  explicit thread_watchdog(std::string what, std::chrono::seconds patience = std::chrono::seconds(150), std::function<void()> tell = {})
      : what_(std::move(what)), patience_(patience), tell_(std::move(tell)), thread_([this] { watch(); }) {}
  thread_watchdog(const thread_watchdog&) = delete;
  thread_watchdog& operator=(const thread_watchdog&) = delete;
  ~thread_watchdog() {
    {
      const std::lock_guard guard(lock_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void feed() {
    const std::lock_guard guard(lock_);
    ++fed_;
  }
  // Restarts the timer and replaces the description of what may hang.
  void feed(std::string what) {
    const std::lock_guard guard(lock_);
    ++fed_;
    what_ = std::move(what);
  }

 private:
  void watch() {
    std::unique_lock guard(lock_);
    while (!over_) {
      const auto seen = fed_;
      // Wakes only at the end, not on feed(): feeding must be cheap.
      if (changed_.wait_until(guard, std::chrono::steady_clock::now() + patience_, [this] { return over_; })) return;
      if (fed_ == seen) bark();
    }
  }
  [[noreturn]] void bark() {
    std::fprintf(stderr, "\nwatchdog: hangs: %s\n", what_.c_str());
    if (tell_) tell_();
    print_thread_stacks();
    std::abort();
  }

  std::mutex lock_;  // guards all members below
  std::condition_variable changed_;
  bool over_ = false;
  unsigned long fed_ = 0;
  std::string what_;
  const std::chrono::seconds patience_;
  const std::function<void()> tell_;
  std::thread thread_;
};

}  // namespace penstock::testing
