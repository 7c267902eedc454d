// The feeder of one device context issues all staged copies of that device, one thread at a time: copies issued by many threads at
// once contend on the driver's lock (512 KiB slabs on an H200: 29 GB/s, with one feeder 44). Any thread may be that one: whoever calls
// pump() while nobody else does issues what is queued and finishes what has arrived, for everybody.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/spin_lock.hpp"
#include "device/device.hpp"
#include "device/owned.hpp"
#include "staging/unpacker.hpp"

namespace penstock::staging {

// One staged copy. Owned by the submitter until done is called, which happens exactly once, on whichever thread pumps.
// done must not block and may release the task.
struct copy_task {
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  // When count is not 0 the task is a scatter: target and source are not used, and bytes only with packed.
  const device::segment* table = nullptr;
  std::size_t count = 0;
  // Of a scatter to a device. Not null: the segments lie in bytes (at most unpacker::room_bytes) from here on, which are sent in one copy.
  const std::byte* packed = nullptr;
  bool elsewhere = false;  // with packed: to memory of another device
  // Not null: nothing is copied, and done is called once this event is reached.
  device::event awaited = nullptr;
  // Not null: may get this value once the copy is there (device::session::write_value), sooner than done is called. A hint.
  std::uint32_t* flag = nullptr;
  std::uint32_t value = 0;
  bool to_device = true;
  bool between_devices = false;  // neither end is memory of the host: beside the copies over the link, not among them
  // Goes past the queue of the others: a copy of what a disk delivered, whose slab the disk waits for, next to a burst from the page cache.
  bool prompt = false;
  void (*done)(copy_task&, status) = nullptr;
  void* context = nullptr;    // the submitter's
  copy_task* next = nullptr;  // the feeder's, while submitted
  status outcome{};           // likewise
};

using copy_task_list = intrusive_list<copy_task, &copy_task::next>;

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
  // Makes what the first copies to the device would make. What cannot be had, these are told.
  void prepare() noexcept;
  // Gives memory of the device back that is held for later copies, unless some are under way.
  void trim() noexcept;
  [[nodiscard]] bool outstanding() const noexcept { return outstanding_.load() != 0; }
  // Tasks that have not ended.
  [[nodiscard]] std::uint64_t pending() const noexcept { return outstanding_.load(std::memory_order_relaxed); }
  // That copies over the link have under way.
  [[nodiscard]] std::uint64_t bytes_on_link() const noexcept {
    return to_device_.bytes.load(std::memory_order_relaxed) + promptly_to_device_.bytes.load(std::memory_order_relaxed) +
           to_host_.bytes.load(std::memory_order_relaxed);
  }

 private:
  // Copies in one direction, and the tasks among them, in order. Each has an event of its own.
  //
  // Those over the link take turns on several streams, and few bytes are under way: a copy engine that has begun with one stream stays with
  // it for as long as copies wait there, whatever other streams of the process ask for. (H200: beside one stream on which two copies of 4
  // MiB were under way at any time a copy of 4 KiB on another stream, of any priority, had not begun after 200 ms.)
  struct lane {
    lane() = default;
    lane(std::size_t turns_taken, std::uint64_t most_under_way) noexcept : turns(turns_taken), most_bytes(most_under_way) {}
    [[nodiscard]] bool has_room() const noexcept;
    // For the next copy. Small ones that follow each other stay on one stream: to change it costs about a microsecond.
    [[nodiscard]] device::stream next_stream() const noexcept { return streams[turn].get(); }
    void note_issued(copy_task& task) noexcept;

    std::size_t turns =
        4;  // all streams are made before the first copy: later, one of the program's that waits could keep the driver from it
    std::uint64_t most_bytes = std::uint64_t{24} << 20;  // under way; but two tasks always
    std::array<device::owned_stream, 4> streams;
    std::array<device::owned_event, 64> events;
    std::array<copy_task*, 64> tasks{};
    std::uint32_t head = 0;               // next to issue
    std::uint32_t tail = 0;               // oldest in flight
    std::atomic<std::uint64_t> bytes{0};  // of those in flight; written by whoever pumps
    std::size_t turn = 0;                 // whose stream it is
    std::uint64_t turn_bytes = 0;         // that it has been given
    copy_task_list waiting;
    bool ready = false;
  };
  status prepare(lane& target);
  status issue(lane& target, copy_task& task);
  status queue(lane& target, const copy_task& task);
  void take_inbox();
  lane& lane_for(const copy_task& task);
  bool issue_waiting(lane& target);
  bool collect(lane& target);
  void settle(lane& target) noexcept;
  bool look_at_awaited();
  void finish(copy_task& task, status outcome) noexcept;
  template <class Function>
  bool each_lane(Function function);

  device::session& session_;
  // Lines of their own: the first is watched by all who wait, the second written by all who submit.
  alignas(64) std::atomic<std::uint64_t> outstanding_{0};
  alignas(64) spin_lock inbox_lock_;  // guards inbox_
  copy_task_list inbox_;
  alignas(64) std::atomic_flag pumping_ = ATOMIC_FLAG_INIT;  // everything below belongs to whoever holds it
  lane to_device_;
  lane promptly_to_device_;
  lane to_host_;
  lane between_devices_{1, ~std::uint64_t{0}};
  unpacker unpacker_{session_};
  copy_task_list awaiting_;
  copy_task_list finished_;
};

// All feeders of an engine, and the watch over their copies: while some are outstanding, somebody looks after them. That is who holds the
// watch, or else the watcher, a thread that does nothing which could hold it up. So no copy depends on what else its submitter does.
class feeders {
 public:
  static constexpr std::size_t capacity = 64;  // device contexts of one engine

  // The right and the duty to pump. Letting go of it while copies are outstanding wakes the watcher.
  class watch {
   public:
    watch() noexcept = default;
    watch(watch&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    watch& operator=(watch&& other) noexcept {
      if (this != &other) {
        end();
        of_ = std::exchange(other.of_, nullptr);
      }
      return *this;
    }
    ~watch() { end(); }
    void end() noexcept;
    explicit operator bool() const noexcept { return of_ != nullptr; }

   private:
    friend class feeders;
    explicit watch(feeders* of) noexcept : of_(of) {}
    feeders* of_ = nullptr;
  };

  feeders() = default;
  feeders(const feeders&) = delete;
  feeders& operator=(const feeders&) = delete;
  ~feeders();  // nothing is outstanding

  // Starts the watcher, if that has not been done. An error (out_of_memory) when it cannot be had: then only threads that wait for a
  // request, and pump, bring copies forward.
  status ready();
  [[nodiscard]] bool has_watcher() const noexcept { return started_.load(std::memory_order_acquire); }
  // The feeder of a session, made on first use. Errors: out_of_memory when there are more than capacity contexts.
  result<feeder*> of(device::session& session);
  bool pump();
  // Each of them.
  void trim() noexcept;
  [[nodiscard]] bool outstanding() const noexcept;
  // Empty when somebody else has the watch.
  [[nodiscard]] watch try_watch() noexcept;
  // To be called after feeder::submit by a thread that will not pump until the copy has ended.
  void attend() noexcept;
  // Runs function(argument), which may destroy this, as the last deed of the watcher. False: there is no watcher.
  bool end_with(void (*function)(void*), void* argument);

 private:
  void look_after();
  void stop(void (*function)(void*), void* argument);

  std::array<std::atomic<feeder*>, capacity> list_{};
  std::atomic<std::size_t> count_{0};
  std::vector<std::unique_ptr<feeder>> owned_;
  spin_lock lock_;  // guards additions
  std::atomic<bool> watched_{false};
  std::mutex watcher_lock_;  // guards starting, stopping and sleeping of the watcher
  std::condition_variable alarm_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  void (*last_deed_)(void*) = nullptr;
  void* last_argument_ = nullptr;
  std::thread watcher_;
};

}  // namespace penstock::staging
