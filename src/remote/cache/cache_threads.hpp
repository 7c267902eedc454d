// The threads of a node's cache. They read and write its files, which may block, and poll for blocks that another process is fetching. They
// are started by the first work item or by ready(). Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/intrusive_list.hpp"
#include "penstock/status.hpp"

namespace penstock::source::remote {

// Work for these threads. The caller owns it and must keep it valid while it is queued.
class cache_work {
 public:
  virtual ~cache_work() = default;
  // May destroy the object.
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
  ~cache_threads() { rest(); }
  // Runs all queued work, including delayed work, then ends the threads. The next work starts them again; if none can be started, it waits
  // for later work.
  void rest();

  // Starts the threads. On success, push() and later() cannot fail afterwards. Error: out_of_memory (no thread could be started).
  status ready();
  void push(cache_work& what) noexcept;
  // Queues work to run after a pause.
  void later(cache_work& what, std::chrono::milliseconds pause) noexcept;
  // Makes all delayed work run immediately.
  void hurry() noexcept;
  // Returns true if the threads must end soon; long-running work should check this.
  [[nodiscard]] bool stopping() const noexcept;

 private:
  status start();
  void loop();
  cache_work* take_due(clock::time_point now) noexcept;

  mutable std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  intrusive_list<cache_work, &cache_work::next_> queue_;
  intrusive_list<cache_work, &cache_work::next_> late_;  // unordered: there are few
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::source::remote
