// Asks a question once, like std::call_once. If an attempt fails with an error or an exception, the next one tries again. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>

#include "penstock/status.hpp"

namespace penstock {

class asked_once {
 public:
  // Calls ask() unless an earlier call succeeded. ask() returns an error if it could not get an answer.
  template <class Ask>
  status ask(Ask ask) {
    if (answered_.load(std::memory_order_acquire)) return {};
    const std::lock_guard guard(lock_);  // held while asking, so that other threads wait for the answer
    if (answered_.load(std::memory_order_relaxed)) return {};
    if (auto error = ask(); !error.ok()) return error;
    answered_.store(true, std::memory_order_release);
    return {};
  }

 private:
  std::atomic<bool> answered_{false};
  std::mutex lock_;
};

}  // namespace penstock
