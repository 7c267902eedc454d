// Threads that wait for the server of one file system, each for one read at a time. They serve reads from slow file systems that cannot, or
// must not, use io_uring past the page cache. answer_times specifies how many are active, up to a limit. They start when work is waiting,
// and exit after some idle time. They also pin memory for disk lanes (slab_pinner). Thread-safe.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

#include "penstock/status.hpp"
#include "staging/answer_times.hpp"
#include "staging/feeder.hpp"
#include "staging/work.hpp"

namespace penstock::staging {

class waiting_lanes {
 public:
  // times and copies must outlive this object.
  waiting_lanes(unsigned most, answer_times& times, feeders& copies) noexcept : most_(most), times_(times), copies_(copies) {}
  waiting_lanes(const waiting_lanes&) = delete;
  waiting_lanes& operator=(const waiting_lanes&) = delete;
  ~waiting_lanes() { rest(); }
  // Runs the queued work items, then ends the threads. The next work item starts one again.
  void rest();

  // Queues the work items, if any. If no thread can be started, runs them on the calling thread.
  void push_or_run(work_list& list, const work_chain& works);
  // Runs one work item from the list on the calling thread. Returns false if the list is empty.
  bool help(work_list& list);

 private:
  static void* enter(void* lanes);
  void loop();
  status ready();
  status start();
  [[nodiscard]] unsigned most_at_work() const noexcept;
  [[nodiscard]] bool has_work() const noexcept { return busy_ < most_at_work() && queue_.size() > 0; }
  void call() noexcept;
  void join(std::vector<pthread_t>& gone) noexcept;

  const unsigned most_;
  answer_times& times_;
  feeders& copies_;
  work_queue queue_;
  std::mutex lock_;  // guards the members below
  std::condition_variable alarm_;
  std::vector<pthread_t> threads_;
  std::vector<pthread_t> gone_;  // exited threads, still to be joined
  unsigned busy_ = 0;
  unsigned idle_ = 0;
  bool stopping_ = false;
};

}  // namespace penstock::staging
