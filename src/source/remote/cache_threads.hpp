// The threads of a node's cache: they read and write its files, which may block, and look again later where another process is fetching.
// They start with the first work, or ready(). Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/intrusive_list.hpp"
#include "penstock/status.hpp"

namespace penstock::source::remote {

// Of whoever queues it, while it is queued.
class cache_work {
 public:
  virtual ~cache_work() = default;
  // May be gone when this returns.
  virtual void run() noexcept = 0;

 private:
  friend class cache_threads;
  cache_work* next_ = nullptr;
  std::chrono::steady_clock::time_point due_{};
};

class cache_threads {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr unsigned count = 4;

  cache_threads() = default;
  cache_threads(const cache_threads&) = delete;
  cache_threads& operator=(const cache_threads&) = delete;
  ~cache_threads();  // runs what is queued, late works too

  // Starts them. Errors: out_of_memory (none can be had); after that push() and later() cannot fail.
  status ready();
  void push(cache_work& what) noexcept;
  // To be run after a pause.
  void later(cache_work& what, std::chrono::milliseconds pause) noexcept;
  // Runs all late works at once.
  void hurry() noexcept;
  // They are to end soon: works that take long look here.
  [[nodiscard]] bool stopping() const noexcept;

 private:
  void loop();
  cache_work* take_due(clock::time_point now) noexcept;

  mutable std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  intrusive_list<cache_work, &cache_work::next_> queue_;
  intrusive_list<cache_work, &cache_work::next_> late_;  // in no order: there are few
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::source::remote
