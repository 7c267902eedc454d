// Cancels the queued work of requests whose deadline has passed. One thread sleeps until the next deadline. Thread-safe.
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

// An object with a deadline. Reference-counted; its creator owns the first reference.
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
  // Cancels work that has not started. Does not block. May be called on any thread.
  virtual void end_queued() = 0;

 protected:
  virtual ~timed() = default;

 private:
  std::atomic<std::uint32_t> references_{1};
  deadline_clock::time_point deadline_ = deadline_clock::time_point::max();
};

// Holds one reference. A value type: several threads may share the referenced object.
template <class Timed>
class timed_ref {
 public:
  timed_ref() noexcept = default;  // refers to no object
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
  ~deadlines() { stop(); }
  // Ends the thread, and what it watches. watch() starts it again.
  void rest();

  // Watches an object that has started until forget() is called. Calls end_queued() when its deadline has passed. Starts the thread. Error:
  // out_of_memory; the object is then not watched.
  status watch(timed& request);
  // Does not block. Another thread may be running end_queued() at the same time.
  void forget(timed& request) noexcept;

 private:
  void loop();
  void stop();

  std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  std::multimap<deadline_clock::time_point, timed_ref<timed>> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::core
