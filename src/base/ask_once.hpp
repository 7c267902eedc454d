// A question that is answered once, as with std::call_once; but an attempt may fail to ask it, by an error or an exception, and then the
// next one tries again. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>

#include "penstock/status.hpp"

namespace penstock {

class asked_once {
 public:
  // ask returns an error if it could not ask.
  template <class Ask>
  status ask(Ask ask) {
    if (answered_.load(std::memory_order_acquire)) return {};
    const std::lock_guard guard(lock_);  // held while asking: whoever needs the answer has to wait for it
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
