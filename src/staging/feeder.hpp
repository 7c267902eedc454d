// The feeder of a device context issues all staged copies for that device, on one thread at a time. Copies issued concurrently by many
// threads contend for the driver's lock (H200, 512 KiB slabs: 29 GB/s; 44 GB/s with one feeder). Any thread may call pump(): if no other
// thread is in it, it issues all queued copies and finishes all completed ones.
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

// One staged copy. Owned by the submitter until done is called. done is called exactly once, on the thread that pumps. It must not block
// and may free the task.
struct copy_task {
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  // If count is not 0, the task is a scatter. Then target and source are unused, and bytes is used only with packed.
  const device::segment* table = nullptr;
  std::size_t count = 0;
  // For a scatter to a device. If not null, the segments are in the first bytes (at most unpacker::room_bytes) of packed, which are sent in
  // one copy.
  const std::byte* packed = nullptr;
  bool elsewhere = false;  // with packed: to another device's memory
  // If not null, nothing is copied, and done is called when the device reaches this event.
  device::event awaited = nullptr;
  // If not null, may be set to value when the copy has completed, before done is called (device::session::write_value). A hint.
  std::uint32_t* flag = nullptr;
  std::uint32_t value = 0;
  bool to_device = true;
  bool between_devices = false;  // neither source nor target is host memory: issued in parallel with the copies over the link
  // Skips the queue of other copies. For data from a disk, which waits for the slab, during a burst from the page cache.
  bool prompt = false;
  void (*done)(copy_task&, status) = nullptr;
  void* context = nullptr;    // owned by the submitter
  copy_task* next = nullptr;  // owned by the feeder while submitted
  status outcome{};           // owned by the feeder while submitted
};

using copy_task_list = intrusive_list<copy_task, &copy_task::next>;

class feeder {
 public:
  explicit feeder(device::session& session) : session_(session) {}
  feeder(const feeder&) = delete;
  feeder& operator=(const feeder&) = delete;
  ~feeder();  // no task may be outstanding

  [[nodiscard]] device::session& session() const noexcept { return session_; }
  void submit(copy_task& task);
  // Issues and finishes as many copies as possible. Returns true if there were any. Returns false at once if another thread is in pump().
  bool pump();
  // Creates what the first copies to the device need. Errors are reported by those copies.
  void prepare() noexcept;
  // Frees device memory that is kept for later copies, unless copies are in flight.
  void trim() noexcept;
  [[nodiscard]] bool outstanding() const noexcept { return outstanding_.load() != 0; }
  // Returns the number of incomplete tasks.
  [[nodiscard]] std::uint64_t pending() const noexcept { return outstanding_.load(std::memory_order_relaxed); }
  // Returns the bytes of the copies in flight over the link.
  [[nodiscard]] std::uint64_t bytes_on_link() const noexcept {
    return to_device_.bytes.load(std::memory_order_relaxed) + promptly_to_device_.bytes.load(std::memory_order_relaxed) +
           to_host_.bytes.load(std::memory_order_relaxed);
  }

 private:
  // Copies in one direction, in order. Each task in flight has its own event.
  //
  // Copies over the link rotate among several streams with few bytes in flight. A copy engine that serves one stream stays with it while
  // copies wait there, regardless of the needs of other streams in the process. (H200: while another stream always had two 4 MiB copies in
  // flight, a 4 KiB copy on a stream of any priority had not started after 200 ms.)
  struct lane {
    lane() = default;
    lane(std::size_t turns_taken, std::uint64_t most_under_way) noexcept : turns(turns_taken), most_bytes(most_under_way) {}
    [[nodiscard]] bool has_room() const noexcept;
    // Returns the stream for the next copy. Consecutive small copies stay on one stream, because switching costs about 1 us.
    [[nodiscard]] device::stream next_stream() const noexcept { return streams[turn].get(); }
    void note_issued(copy_task& task) noexcept;

    std::size_t turns = 4;  // all streams are created before the first copy; later, a waiting stream of the program could block the driver
    std::uint64_t most_bytes = std::uint64_t{24} << 20;  // in flight; two tasks are always allowed
    std::array<device::owned_stream, 4> streams;
    std::array<device::owned_event, 64> events;
    std::array<copy_task*, 64> tasks{};
    std::uint32_t head = 0;               // next one to issue
    std::uint32_t tail = 0;               // oldest one in flight
    std::atomic<std::uint64_t> bytes{0};  // bytes of the tasks in flight; written by the thread that pumps
    std::size_t turn = 0;                 // index of the current stream
    std::uint64_t turn_bytes = 0;         // bytes given to the current stream
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
  // Separate cache lines, because every waiting thread polls the first, and every submitter writes the second.
  alignas(64) std::atomic<std::uint64_t> outstanding_{0};
  alignas(64) spin_lock inbox_lock_;  // guards inbox_
  copy_task_list inbox_;
  alignas(64) std::atomic_flag pumping_ = ATOMIC_FLAG_INIT;  // its holder owns all members below
  lane to_device_;
  lane promptly_to_device_;
  lane to_host_;
  lane between_devices_{1, ~std::uint64_t{0}};
  unpacker unpacker_{session_};
  copy_task_list awaiting_;
  copy_task_list finished_;
};

// All feeders of an engine, and the watch over their copies. While copies are outstanding, either the holder of the watch or the watcher
// thread pumps. The watcher does nothing that could block it. Therefore no copy depends on what its submitter does next.
class feeders {
 public:
  static constexpr std::size_t capacity = 64;  // device contexts per engine

  // The right and the duty to pump. Releasing it while copies are outstanding wakes the watcher.
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
  ~feeders() { rest(); }  // nothing may be outstanding
  // Ends the watcher. ready() starts it again. Nothing may be outstanding.
  void rest();

  // Starts the watcher if it is not running. Returns an error (out_of_memory) if the watcher cannot start. Copies then proceed only in
  // pump(), which threads that wait for a request call.
  status ready();
  [[nodiscard]] bool has_watcher() const noexcept { return started_.load(std::memory_order_acquire); }
  // Returns the feeder of a session, created on first use. Error: out_of_memory if there are more than capacity contexts.
  result<feeder*> of(device::session& session);
  bool pump();
  // Trims every feeder.
  void trim() noexcept;
  [[nodiscard]] bool outstanding() const noexcept;
  // Returns an empty watch if another thread holds it.
  [[nodiscard]] watch try_watch() noexcept;
  // Wakes the watcher if needed. Call it after feeder::submit() from a thread that does not pump until the copy has completed.
  void attend() noexcept;
  // Makes the watcher run function(argument), which may destroy this object, as its last action. Returns false if there is no watcher.
  bool end_with(void (*function)(void*), void* argument);

 private:
  void look_after();
  void stop(void (*function)(void*), void* argument);

  std::array<std::atomic<feeder*>, capacity> list_{};
  std::atomic<std::size_t> count_{0};
  std::vector<std::unique_ptr<feeder>> owned_;
  spin_lock lock_;  // guards additions
  std::atomic<bool> watched_{false};
  std::mutex watcher_lock_;  // guards starting and stopping the watcher, and its sleep
  std::condition_variable alarm_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  void (*last_deed_)(void*) = nullptr;
  void* last_argument_ = nullptr;
  std::thread watcher_;
};

}  // namespace penstock::staging
