// The lanes that move bytes with the CPU: worker threads that take works from one queue. When idle they look after copies that
// are under way, spin for a moment (a call of 1 MiB is over in 75 us, waking a thread takes 20), then sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "staging/feeder.hpp"
#include "staging/work.hpp"

namespace penstock::staging {

class lanes {
 public:
  // Threads are started by the first push. spin: how long an idle lane spins before it sleeps; zero where cores are few. copies: what they
  // look after when idle; null: nothing. name: of the threads, at most 10 characters, with a number behind it.
  lanes(unsigned count, std::chrono::microseconds spin, feeders* copies, const char* name = "penstock-");
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;
  ~lanes();  // runs what is queued, then joins

  // Starts the threads, if that has not been done. An error (out_of_memory) when not one can be had: then only threads that wait for a
  // request, and help, bring it forward.
  status ready();
  // Queues the chain first..last. An error (no thread could be started) means that nothing was queued.
  status push(work_list& list, work& first, work& last, std::size_t count);
  status push(work_list& list, work& item) { return push(list, item, item, 1); }
  // Queues a work that never waits for a slab and gives one back: it goes first, and help_urgent() may run it on any thread.
  void push_urgent(work_list& list, work& item);
  // Runs one work of the list on the calling thread. False: there was none.
  bool help(work_list& list);
  // Runs an urgent work (of this list only), if there is one. For whoever waits for a slab: were all lanes to wait, nobody else would run
  // it.
  bool help_urgent();
  bool help_urgent(work_list& list);
  // Takes one work out of the list, for the caller to run or end; null when there is none.
  work* withdraw(work_list& list) { return queue_.take_from(list); }
  [[nodiscard]] bool without_threads() const noexcept { return !started_.load(std::memory_order_acquire); }
  [[nodiscard]] unsigned count() const noexcept { return count_; }

 private:
  void loop(unsigned index);
  work* take();
  bool look_after_copies(feeders::watch& watch, bool soon);
  void sleep();
  void wake(std::size_t works);

  const unsigned count_;
  const std::chrono::microseconds spin_;
  feeders* const copies_;
  const char* const name_;
  work_queue queue_;
  work_queue urgent_;
  std::mutex lock_;  // guards starting and sleeping
  std::condition_variable alarm_;
  std::atomic<unsigned> sleepers_{0};
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock::staging
