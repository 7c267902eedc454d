// Threads that wait for the server of one file system, each for one read at a time: for what cannot be asked for through an io_uring past
// the page cache, or shall not, where a file system answers late. As many are at work as it is best asked for at once (answer_times), up to
// a limit. They are started when works wait, and go when they have had nothing to do for a while. Thread-safe.
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
  // times and copies outlive them.
  waiting_lanes(unsigned most, answer_times& times, feeders& copies) noexcept : most_(most), times_(times), copies_(copies) {}
  waiting_lanes(const waiting_lanes&) = delete;
  waiting_lanes& operator=(const waiting_lanes&) = delete;
  ~waiting_lanes();  // runs what is queued, then joins

  // Queues them, if there are any; where no thread can be started the caller runs them.
  void push_or_run(work_list& list, const work_chain& works);
  // Runs one work of the list on the calling thread. False: there was none.
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
  std::mutex lock_;  // guards what follows
  std::condition_variable alarm_;
  std::vector<pthread_t> threads_;
  std::vector<pthread_t> gone_;  // that have left, and are to be joined
  unsigned busy_ = 0;
  unsigned idle_ = 0;
  bool stopping_ = false;
};

}  // namespace penstock::staging
