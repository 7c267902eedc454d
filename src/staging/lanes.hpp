// The lanes that move bytes with the CPU: worker threads that take works from one queue. As many are at work as the links that they feed
// can use, which the works tell while they run. When idle the first lanes look after copies that are under way and spin for a moment (a
// call of 1 MiB is over in 75 us, waking a thread takes 20), then all sleep.
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
  // More never sent more over one link: reads of a hot file reach 48.7, 52.2, 51.1 and 46.7 GB/s with 8, 10, 12 and 16, at 0.165, 0.191,
  // 0.232 and 0.323 CPU s/GB (H100, 32 cores).
  static constexpr unsigned most_of_one_link = 10;
  // usual lanes are at work at first, later fewer or more, or always so many.
  struct crew {
    unsigned most = 1;
    unsigned usual = most;
    bool follows_links = false;
    right_of_way* behind = nullptr;  // of lanes of the background: what lets them take works; outlives them
    unsigned urgent_in_a_row = 0;    // urgent works after which a lane takes another one, if there is any; 0: no limit
  };
  // Threads are started by the first push. spin: how long an idle lane spins before it sleeps; zero where cores are few. copies: what they
  // look after when idle; null: nothing. name: of the threads, at most 10 characters, with a number behind it.
  lanes(crew size, std::chrono::microseconds spin, feeders* copies, const char* name = "penstock-");
  lanes(unsigned count, std::chrono::microseconds spin, feeders* copies, const char* name = "penstock-")
      : lanes(crew{count}, spin, copies, name) {}
  lanes(const lanes&) = delete;
  lanes& operator=(const lanes&) = delete;
  ~lanes();  // runs what is queued, then joins

  // Starts the threads, if that has not been done. An error (out_of_memory) when not one can be had: then only threads that wait for a
  // request, and help, bring it forward.
  status ready();
  // Queues the chain first..last. An error (no thread could be started) means that nothing was queued.
  status push(work_list& list, work& first, work& last, std::size_t count);
  status push(work_list& list, work& item) { return push(list, item, item, 1); }
  // Queues them, if there are any; where no thread could be started the caller runs them.
  void push_or_run(work_list& list, const work_chain& works);
  // Queues a work that need not be run: lanes that are awake may, and one that sleeps where wakes says so. To be withdrawn.
  void offer(work_list& list, work& item, bool wakes);
  // Queues a work that never waits for a slab and gives one back: it goes first, and help_urgent() may run it on any thread.
  void push_urgent(work_list& list, work& item);
  // Runs one work of the list on the calling thread. False: there was none.
  bool help(work_list& list);
  // Runs an urgent work (of this list only), if there is one. For whoever waits for a slab: were all lanes to wait, nobody else would run
  // it.
  bool help_urgent();
  bool help_urgent(work_list& list);
  [[nodiscard]] bool has_urgent() const noexcept { return urgent_.size() > 0; }
  // Takes one work out of the list, for the caller to run or end; null when there is none.
  work* withdraw(work_list& list) { return queue_.take_from(list); }
  // Takes this one out. False: it is not in the list any more.
  bool withdraw(work_list& list, work& item) { return queue_.remove(list, item); }
  [[nodiscard]] bool without_threads() const noexcept { return !started_.load(std::memory_order_acquire); }
  // At work now, or would be.
  [[nodiscard]] unsigned count() const noexcept { return at_work_.load(std::memory_order_relaxed); }
  // Works that nobody has taken.
  [[nodiscard]] std::size_t backlog() const noexcept { return queue_.size(); }
  // Works tell how they find what they feed: when they have something for it, which link that is (null: none, they bring bytes to the host)
  // and whether it had nothing to do; and that they had to wait for it.
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
  void add_one(unsigned to) noexcept;

  const crew size_;
  const std::chrono::microseconds spin_;
  feeders* const copies_;
  const char* const name_;
  work_queue queue_;
  work_queue urgent_;
  std::atomic<unsigned> at_work_;                    // lanes with an index below this
  std::atomic<unsigned> spinning_{0};                // idle lanes that look for work
  std::atomic<std::uint64_t> asleep_{0};             // a bit for each lane
  std::unique_ptr<seat[]> seats_;                    // where they sleep
  std::atomic<std::int64_t> typical_ns_{1'000'000};  // that a work takes, of late
  // Since the last adjustment.
  alignas(64) std::atomic<unsigned> feeds_{0};
  std::atomic<unsigned> idle_feeds_{0};
  std::atomic<unsigned> waits_{0};
  std::array<std::atomic<const void*>, 8> fed_{};  // links
  std::atomic<unsigned> links_before_{0};          // that were fed before the last adjustment
  std::mutex lock_;                                // guards starting and stopping
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock::staging
