// Lanes: the worker threads that copy bytes with the CPU. They take work items from one queue. The number of active lanes adapts to the
// needs of the links that they feed, which the work items report while they run. Idle lanes first handle copies in flight and spin for a
// moment (a 1 MiB call takes 75 us, waking a thread 20 us), then they sleep.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "staging/feeder.hpp"
#include "staging/right_of_way.hpp"
#include "staging/work.hpp"

namespace penstock::staging {

class lanes {
 public:
  static constexpr unsigned most_lanes = 64;
  // More lanes never increased the throughput of one link. With 8, 10, 12, 14 and 16 lanes, reads of a cached file reach 35, 45, 51, 50 and
  // 51 GB/s at 0.23, 0.22, 0.23, 0.25 and 0.28 CPU s/GB (H100, 16 cores that copy 4.5 GB/s each; faster cores need 8 to 10 lanes).
  static constexpr unsigned most_of_one_link = 12;
  // usual: the initial number of active lanes. With follows_links, the number changes later; otherwise it is constant.
  struct crew {
    unsigned most = 1;
    unsigned usual = most;
    bool follows_links = false;
    right_of_way* behind = nullptr;  // for background lanes: decides when they may take work; must outlive them
    unsigned urgent_in_a_row = 0;    // consecutive urgent work items after which a lane takes a normal one, if there is one; 0: no limit
  };
  // The first push starts the threads. spin: how long an idle lane spins before it sleeps; zero on machines with few cores. copies: the
  // copies that idle lanes handle; null: none. name: prefix of the thread names, at most 10 characters; a number is appended.
  lanes(crew size, std::chrono::microseconds spin, feeders* copies, const char* name = "penstock-");
  lanes(unsigned count, std::chrono::microseconds spin, feeders* copies, const char* name = "penstock-")
      : lanes(crew{count}, spin, copies, name) {}
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;
  ~lanes() { rest(); }
  // Runs the queued work items, then ends the threads. The next push starts them again.
  void rest();

  // Starts the threads if they are not running. Returns an error (out_of_memory) if not even one can start. Work items then run only in
  // help(), which threads that wait for a request call.
  status ready();
  // Queues the chain first..last. On error (no thread could be started), nothing was queued.
  status push(work_list& list, work& first, work& last, std::size_t count);
  status push(work_list& list, work& item) { return push(list, item, item, 1); }
  // Queues the work items, if any. If no thread could be started, runs them on the calling thread.
  void push_or_run(work_list& list, const work_chain& works);
  // Queues a work item that does not have to run. A lane that is awake may take it, and a sleeping one also if wakes is set. The caller
  // withdraws it.
  void offer(work_list& list, work& item, bool wakes);
  // Queues a work item that returns a slab and never waits for one. It runs first, and help_urgent() may run it on any thread.
  void push_urgent(work_list& list, work& item);
  // Runs one work item from the list on the calling thread. Returns false if the list is empty.
  bool help(work_list& list);
  // Runs an urgent work item (from this list only), if there is one. For threads that wait for a slab: if all lanes waited, no other thread
  // would run it.
  bool help_urgent();
  bool help_urgent(work_list& list);
  [[nodiscard]] bool has_urgent() const noexcept { return urgent_.size() > 0; }
  // Takes one work item out of the list for the caller to run or end. Returns null if the list is empty.
  work* withdraw(work_list& list) { return queue_.take_from(list); }
  // Takes this work item out of the list. Returns false if it is no longer there.
  bool withdraw(work_list& list, work& item) { return queue_.remove(list, item); }
  [[nodiscard]] bool without_threads() const noexcept { return !started_.load(std::memory_order_acquire); }
  // Returns the number of active lanes, even if they have not started.
  [[nodiscard]] unsigned count() const noexcept { return at_work_.load(std::memory_order_relaxed); }
  // Returns the number of work items that no lane has taken.
  [[nodiscard]] std::size_t backlog() const noexcept { return queue_.size(); }
  // Work items report the state of what they feed. feed(): a work item has bytes for this link (null: none, because the bytes go to host
  // memory), and whether the link was idle. waited(): a work item had to wait for its link.
  void feed(const void* link, bool was_idle) noexcept;
  void waited() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using clock = std::chrono::steady_clock;
  struct seat {
    alignas(64) std::atomic<std::uint32_t> called{0};
  };

  status start(unsigned count);
  void loop(unsigned index);
  bool may_take() noexcept;
  work* take(unsigned index, unsigned& urgent_run);
  bool look_after_copies(feeders::watch& watch, bool soon);
  [[nodiscard]] bool has_work_for(unsigned index) const noexcept;
  void sleep(unsigned index);
  void wake(std::size_t works, unsigned awake);
  bool call_one(unsigned count) noexcept;
  void note(clock::duration took) noexcept;
  void adjust() noexcept;
  unsigned links_fed() noexcept;
  void grow(unsigned to) noexcept;

  const crew size_;
  const std::chrono::microseconds spin_;
  feeders* const copies_;
  const char* const name_;
  work_queue queue_;
  work_queue urgent_;
  std::atomic<unsigned> at_work_;                    // lanes with an index below this
  std::atomic<unsigned> spinning_{0};                // idle lanes that look for work
  std::atomic<std::uint64_t> asleep_{0};             // one bit per lane
  std::unique_ptr<seat[]> seats_;                    // where lanes sleep
  std::atomic<std::int64_t> typical_ns_{1'000'000};  // recent run time of a work item
  // Counts since the last adjustment.
  alignas(64) std::atomic<unsigned> feeds_{0};
  std::atomic<unsigned> idle_feeds_{0};
  std::atomic<unsigned> waits_{0};
  std::array<std::atomic<const void*>, 8> fed_{};  // links
  std::atomic<unsigned> links_before_{0};          // links fed before the last adjustment
  std::mutex lock_;                                // guards starting and stopping
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock::staging
