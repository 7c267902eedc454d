// Disk lanes: worker threads that read and write past the page cache. Each one owns an io_uring with registered slabs and keeps its queue
// deep. A work item runs on the lane's thread, takes a slab and passes a ring task to begin(). The task's done is called on the same
// thread.
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

// One read or write in a ring task. file_offset, length and memory obey the file's direct I/O alignment.
struct ring_piece {
  int fd = -1;
  std::byte* memory = nullptr;
  std::uint32_t length = 0;
  std::uint64_t file_offset = 0;
  std::uint32_t moved = 0;        // result: bytes; if error is 0, fewer than length means end of file
  int error = 0;                  // result: errno; ECANCELED: the ring failed
  std::uint8_t retries = 0;       // owned by the lane: EINTR and EAGAIN, at most 64
  answer_times::reading timed{};  // owned by the lane: set while a piece of a timed task is in flight
};

// Several pieces in one slab. Owned by the submitter until done is called. done is called exactly once, after all pieces complete.
struct ring_task {
  bool is_write = false;
  slab memory;
  slab_pool* pool = nullptr;      // the pool that owns memory; null: the pieces are elsewhere
  answer_times* times = nullptr;  // for reads from a file system with a server; null: not timed
  std::vector<ring_piece> pieces;
  void (*done)(ring_task&) = nullptr;
  void* context = nullptr;         // owned by the submitter
  const void* group = nullptr;     // the key for end_ready()
  std::uint32_t next = 0;          // owned by the lane: first piece not yet queued
  std::uint32_t outstanding = 0;   // owned by the lane: incomplete pieces
  ring_task* next_task = nullptr;  // owned by the lane
};

using ring_task_list = intrusive_list<ring_task, &ring_task::next_task>;

// Returns the error of rest() for a ring that has stopped answering. Its requests may still be in flight, so it is never closed.
[[nodiscard]] status failed_ring();

class disk_lanes {
 public:
  static constexpr unsigned depth = 128;  // pieces in flight per lane
  // The same on a slow file system. answer_times specifies how many of them may be in flight.
  static constexpr unsigned most_depth = answer_times::most_at_once;
  // One ring serves 150,000 requests per second, or any current drive in 1 MiB pieces.
  static constexpr unsigned usual_count(unsigned cores) noexcept { return cores >= 32 ? 2 : 1; }
  static constexpr unsigned tasks_in_flight = 8;  // slabs in flight per lane, unless the file system is slow

  // refusal: why io_uring must not be used; ok if it may. times: whether the file system is slow; null: it is not. kernel, copies and times
  // must outlive the lanes.
  disk_lanes(unsigned count, sys::kernel& kernel, feeders& copies, status refusal = {}, answer_times* times = nullptr);
  disk_lanes(const disk_lanes&) = delete;
  disk_lanes& operator=(const disk_lanes&) = delete;
  ~disk_lanes();  // stops
  // Runs the queued work items, then joins the threads. Other threads may still be returning from push() and push_ready() until the
  // destructor runs.
  void stop();
  // Stops and closes the rings. available() starts them again. Other threads may still be returning from push(). Error: failed_ring().
  status rest();

  // Returns ok if io_uring works, otherwise the reason. Callers then use plain system calls. Starts the lanes on first use.
  status available();
  // Queues the chain first..last. A work item whose run() returns false runs again later.
  void push(work_list& list, work& first, work& last, std::size_t count);
  // Queues a task whose slab already contains the file data (a write whose copy has completed). It starts before other work items.
  void push_ready(ring_task& task);
  // Runs one work item from the list on the calling thread, to end a request that was stopped. Returns false if the list is empty.
  bool help(work_list& list);
  // Call after slab_pool::trim(). Asks each lane to unregister ring memory that no longer belongs to a slab, and which the kernel retains
  // until then. Does not wait: a lane unregisters it when it next has time.
  void release_trimmed();
  // Ends the group's tasks that are ready and have not started: their pieces are cancelled and no bytes are transferred.
  void end_ready(const void* group);
  // Call when there may be a slab for a work item that could not start: a lane runs it again. Does not block.
  void slab_returned();
  // Starts the task on this lane. Call only from run() of a work item on a disk lane.
  static void begin(ring_task& task);

 private:
  class lane;
  status start();
  status start(lane& on);
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
  std::atomic<unsigned> working_{0};  // lanes with a working ring
  std::atomic<unsigned> trims_{0};
  std::atomic<unsigned> returns_{0};  // of slabs
  std::atomic<bool> refused_{false};  // a work item waits for a slab
  status start_problem_;
  const status died_{errc::unsupported, "io_uring stopped working"};
  std::vector<std::unique_ptr<lane>> lanes_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::staging
