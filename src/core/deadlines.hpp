// Ends what is still queued of requests whose deadline has passed: a thread that sleeps until the next one. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/pending.hpp"

namespace penstock::core {

class deadlines {
 public:
  deadlines() = default;
  deadlines(const deadlines&) = delete;
  deadlines& operator=(const deadlines&) = delete;
  ~deadlines();  // no request is watched any more

  // Watches a request that has begun until forget() is called: pending::end_queued() comes once its deadline has passed. Starts the thread.
  // Errors: out_of_memory; then nobody watches it.
  status watch(pending& request);
  // Does not block. It may be that end_queued() runs at this moment.
  void forget(pending& request) noexcept;

 private:
  void loop();

  std::mutex lock_;  // guards what follows
  std::condition_variable changed_;
  std::multimap<deadline_clock::time_point, pending*> watched_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::core
