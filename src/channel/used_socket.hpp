// A socket that one thread may close while others are in a call on it. The descriptor is closed when the last of these calls returns, and
// later calls get -1. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "sys/peer.hpp"

namespace penstock::channel {

class used_socket {
 public:
  explicit used_socket(sys::owned_descriptor of) noexcept : owned_(std::move(of)) {}

  // One call that uses the socket.
  class use {
   public:
    explicit use(used_socket& of) noexcept : of_(of.enter() ? &of : nullptr) {}
    use(const use&) = delete;
    use& operator=(const use&) = delete;
    ~use() {
      if (of_ != nullptr) of_->leave();
    }
    // Returns -1, which the kernel refuses, once the socket is closed.
    [[nodiscard]] int fd() const noexcept { return of_ != nullptr ? of_->owned_.get() : -1; }

   private:
    used_socket* const of_;
  };

  void close() noexcept {
    if (!closed_.exchange(true)) leave();
  }

 private:
  bool enter() noexcept {
    auto uses = uses_.load(std::memory_order_relaxed);
    while (uses > 0) {
      if (uses_.compare_exchange_weak(uses, uses + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  void leave() noexcept {
    if (uses_.fetch_sub(1, std::memory_order_acq_rel) == 1) sys::owned_descriptor gone(std::move(owned_));
  }

  sys::owned_descriptor owned_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint32_t> uses_{1};  // calls in progress, plus one until it is closed
};

}  // namespace penstock::channel
