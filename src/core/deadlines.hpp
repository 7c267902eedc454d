// Ends what is still queued of requests whose deadline has passed: a thread that sleeps until the next one. Thread-safe.
#pragma once

#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock::core {

// What has a deadline. Counted by reference; the first one is the maker's.
class timed {
 public:
  timed() = default;
  timed(const timed&) = delete;
  timed& operator=(const timed&) = delete;

  void retain() noexcept {
    const auto before = references_.fetch_add(1, std::memory_order_relaxed);
    assert(before > 0);
  }
  void release() noexcept {
    const auto before = references_.fetch_sub(1, std::memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) delete this;
  }
  void set_deadline(deadline_clock::time_point when) noexcept { deadline_ = when; }
  [[nodiscard]] deadline_clock::time_point deadline() const noexcept { return deadline_; }
  // Ends what has not begun. Does not block. Any thread.
  virtual void end_queued() = 0;

 protected:
  virtual ~timed() = default;

 private:
  std::atomic<std::uint32_t> references_{1};
  deadline_clock::time_point deadline_ = deadline_clock::time_point::max();
};

// One reference, let go of with this. A value; the object behind it may be shared between threads.
template <class Timed>
class timed_ref {
 public:
  timed_ref() noexcept = default;  // to nothing
  explicit timed_ref(Timed& of) noexcept : of_(&of) { of.retain(); }
  timed_ref(const timed_ref& other) noexcept : of_(other.of_) {
    if (of_ != nullptr) of_->retain();
  }
  timed_ref(timed_ref&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
  timed_ref& operator=(timed_ref other) noexcept {
    std::swap(of_, other.of_);
    return *this;
  }
  ~timed_ref() {
    if (of_ != nullptr) of_->release();
  }
  [[nodiscard]] Timed* get() const noexcept { return of_; }
  Timed* operator->() const noexcept { return of_; }
  Timed& operator*() const noexcept { return *of_; }

 private:
  Timed* of_ = nullptr;
};

class deadlines {
 public:
  deadlines() = default;
  deadlines(const deadlines&) = delete;
  deadlines& operator=(const deadlines&) = delete;
  ~deadlines();  // nothing is watched any more

  // Watches what has begun until forget() is called: end_queued() comes once its deadline has passed. Starts the thread.
  // Errors: out_of_memory; then nobody watches it.
  status watch(timed& request);
  // Does not block. It may be that end_queued() runs at this moment.
  void forget(timed& request) noexcept;

 private:
  void loop();

  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  std::multimap<deadline_clock::time_point, timed_ref<timed>> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::core
