// The feeder of one device context issues all staged copies of that device, one thread at a time: copies issued by many threads at
// once contend on the driver's lock (512 KiB slabs on an H200: 29 GB/s, with one feeder 44). Any thread may be that one: whoever calls
// pump() while nobody else does issues what is queued and finishes what has arrived, for everybody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "device/device.hpp"

namespace penstock::staging {

// One staged copy. Owned by the submitter until done is called, which happens exactly once, on whichever thread pumps.
// done must not block and may release the task.
struct copy_task {
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  // When count is not 0 the task is a scatter: target, source and bytes are not used.
  const device::segment* table = nullptr;
  std::size_t count = 0;
  bool to_device = true;
  // Goes past the queue of the others: a copy of what a disk delivered, whose slab the disk waits for, next to a burst from the page cache.
  bool prompt = false;
  void (*done)(copy_task&, status) = nullptr;
  void* context = nullptr;    // the submitter's
  copy_task* next = nullptr;  // the feeder's, while submitted
};

class feeder {
 public:
  explicit feeder(device::session& session) : session_(session) {}
  feeder(const feeder&) = delete;
  feeder& operator=(const feeder&) = delete;
  ~feeder();  // nothing may be outstanding

  [[nodiscard]] device::session& session() const noexcept { return session_; }
  void submit(copy_task& task);
  // Issues and finishes what it can. True when there was something. False at once when another thread is at it.
  bool pump();
  [[nodiscard]] bool outstanding() const noexcept { return outstanding_.load() != 0; }

 private:
  // Copies in one direction: a stream and the tasks on it, in order. Each has an event of its own.
  struct lane {
    device::stream stream = nullptr;
    std::array<device::event, 64> events{};
    std::array<copy_task*, 64> tasks{};
    std::uint32_t head = 0;  // next to issue
    std::uint32_t tail = 0;  // oldest in flight
    copy_task* waiting_head = nullptr;
    copy_task* waiting_tail = nullptr;
    bool ready = false;
  };
  struct finished {
    copy_task* task;
    status outcome;
  };

  status prepare(lane& target);
  status issue(lane& target, copy_task& task);
  void take_inbox();
  lane& lane_for(const copy_task& task);
  bool issue_waiting(lane& target);
  bool collect(lane& target);
  template <class Function>
  bool each_lane(Function function);
  void destroy(lane& target);

  device::session& session_;
  // Lines of their own: the first is watched by all who wait, the second written by all who submit.
  alignas(64) std::atomic<std::uint64_t> outstanding_{0};
  alignas(64) spin_lock inbox_lock_;  // guards the two inbox pointers
  copy_task* inbox_head_ = nullptr;
  copy_task* inbox_tail_ = nullptr;
  alignas(64) std::atomic_flag pumping_ = ATOMIC_FLAG_INIT;  // everything below belongs to whoever holds it
  lane to_device_;
  lane promptly_to_device_;
  lane to_host_;
  std::vector<finished> finished_;
};

// All feeders of an engine, and the watch: while copies are outstanding, at least one thread looks after them.
class feeders {
 public:
  static constexpr std::size_t capacity = 64;  // device contexts of one engine

  // The feeder of a session, made on first use. Errors: out_of_memory when there are more than capacity contexts.
  result<feeder*> of(device::session& session);
  bool pump();
  [[nodiscard]] bool outstanding() const noexcept;
  // The watch is held by one thread at a time, which pumps and naps. False: somebody else has it.
  bool try_watch() noexcept { return !watched_.load(std::memory_order_relaxed) && !watched_.exchange(true); }
  void unwatch() noexcept { watched_.store(false); }
  [[nodiscard]] bool watched() const noexcept { return watched_.load(); }

 private:
  std::array<std::atomic<feeder*>, capacity> list_{};
  std::atomic<std::size_t> count_{0};
  std::vector<std::unique_ptr<feeder>> owned_;
  spin_lock lock_;  // guards additions
  std::atomic<bool> watched_{false};
};

}  // namespace penstock::staging
