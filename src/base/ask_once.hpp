// Runs a query once, like std::call_once. If an attempt fails with an error or an exception, the next call tries again. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>

#include "penstock/status.hpp"

namespace penstock {

class asked_once {
 public:
  // Calls ask() unless an earlier call succeeded. ask() must return an error if the query failed.
  template <class Ask>
  status ask(Ask ask) {
    if (answered_.load(std::memory_order_acquire)) return {};
    const std::lock_guard guard(lock_);  // held during the query, so that other threads wait for it
    if (answered_.load(std::memory_order_relaxed)) return {};
    if (auto error = ask(); !error.ok()) return error;
    answered_.store(true, std::memory_order_release);
    return {};
  }
  // Makes the next call of ask() query again. No call may be in progress.
  void forget() noexcept { answered_.store(false); }

 private:
  std::atomic<bool> answered_{false};
  std::mutex lock_;
};

}  // namespace penstock
