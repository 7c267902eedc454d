// The lanes that talk to the disk past the page cache: each has an io_uring with registered slabs and keeps its queue deep.
// Works for them run on the lane's thread, take a slab and hand pieces to begin(); their done is called there too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/intrusive_list.hpp"
#include "staging/answer_times.hpp"
#include "staging/feeder.hpp"
#include "staging/slab_pool.hpp"
#include "staging/work.hpp"
#include "sys/kernel.hpp"

namespace penstock::staging {

// One read or write of a ring task. file_offset, length and memory obey the file's direct I/O alignment.
struct ring_piece {
  int fd = -1;
  std::byte* memory = nullptr;
  std::uint32_t length = 0;
  std::uint64_t file_offset = 0;
  std::uint32_t moved = 0;        // result: bytes; fewer than length means end of file when error is 0
  int error = 0;                  // result: errno; ECANCELED: the ring died
  std::uint8_t retries = 0;       // the lane's: EINTR and EAGAIN, at most 64
  answer_times::reading timed{};  // the lane's: while it is under way, of a task that is timed
};

// Several pieces in one slab. Owned by the submitter until done is called, exactly once, when every piece has ended.
struct ring_task {
  bool is_write = false;
  slab memory;
  slab_pool* pool = nullptr;      // that memory came from; null: the pieces lie elsewhere
  answer_times* times = nullptr;  // of reads from a file system with a server; null: they are not timed
  std::vector<ring_piece> pieces;
  void (*done)(ring_task&) = nullptr;
  void* context = nullptr;         // the submitter's
  const void* group = nullptr;     // what end_ready() knows it by
  std::uint32_t next = 0;          // the lane's: first piece not yet queued
  std::uint32_t outstanding = 0;   // the lane's: pieces not yet ended
  ring_task* next_task = nullptr;  // the lane's
};

using ring_task_list = intrusive_list<ring_task, &ring_task::next_task>;

class disk_lanes {
 public:
  static constexpr unsigned depth = 128;  // pieces in flight, per lane
  // The same where the file system answers late: answer_times tells how many of them are let begin.
  static constexpr unsigned most_depth = answer_times::most_at_once;
  // One ring serves 150,000 requests a second, or any drive of this day in pieces of a megabyte.
  static constexpr unsigned usual_count(unsigned cores) noexcept { return cores >= 32 ? 2 : 1; }
  static constexpr unsigned tasks_in_flight = 8;  // slabs in flight, per lane, of a file system that does not answer late

  // refusal: why there are to be no rings; ok where there may be. times: of the file system, which say whether it answers late; null: it
  // does not. They outlive the lanes.
  disk_lanes(unsigned count, sys::kernel& kernel, feeders& copies, status refusal = {}, answer_times* times = nullptr);
  disk_lanes(const disk_lanes&) = delete;
  disk_lanes& operator=(const disk_lanes&) = delete;
  ~disk_lanes();  // stops
  // Runs what is queued, then joins its threads. Others may still be on their way out of push() and push_ready(), until it is destroyed.
  void stop();

  // Ok when rings work; otherwise why not. Callers then use plain system calls. Starts the lanes on first use.
  status available();
  // Queues the chain first..last; works whose run() returns false are offered again.
  void push(work_list& list, work& first, work& last, std::size_t count);
  // Queues one whose file data is ready in its slab (a write whose copy has arrived): it starts before other works.
  void push_ready(ring_task& task);
  // Runs one work of the list on the calling thread: one of a request that was stopped, which only ends. False: there was none.
  bool help(work_list& list);
  // After slab_pool::trim(): has each lane let go of the memory that it has registered with its ring and that is no slab's any more, which
  // the kernel keeps until then. They do so when they next have time; does not wait for them.
  void release_trimmed();
  // Ends the tasks of a group that are ready and have not started: their pieces are cancelled, with nothing moved.
  void end_ready(const void* group);
  // Only from run() of a work on a disk lane: starts the task on that lane.
  static void begin(ring_task& task);

 private:
  class lane;
  status start();
  ring_task* take_ready();
  void wake();

  const unsigned count_;
  sys::kernel& kernel_;
  feeders& copies_;
  answer_times* const times_;
  work_queue queue_;
  spin_lock ready_lock_;  // guards ready_
  ring_task_list ready_;
  std::atomic<std::size_t> ready_count_{0};
  std::mutex lock_;  // guards starting and sleeping
  std::condition_variable alarm_;
  std::atomic<unsigned> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  std::atomic<unsigned> working_{0};  // lanes whose ring works
  std::atomic<unsigned> trims_{0};
  status start_problem_;
  const status died_{errc::unsupported, "io_uring stopped working"};
  std::vector<std::unique_ptr<lane>> lanes_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::staging
