// A request that runs in stream order. All device work is enqueued on the stream when the request is queued: waits and copies that use the
// shared block (stream_block), and words through which the stream reports its progress to the stream_watch. After that, only threads that
// never call the device process the request. It therefore completes even if the driver is blocked until the stream continues, and the host
// is not blocked. Reference-counted. The part that is copied at a time is called a wave:
//
//   read    report `reached` | for each wave: wait for its turn, copy, report `copied` | wait until the count is set | report `passed`
//   write   the same, and the count is set when all is written
//
// A request with fixed values starts when it is queued, if enough slabs are free, so that a read's bytes are in slabs when the stream
// reaches it. If a read may be reported early, its stream does not wait for the count, which is set before the last wave is copied. If
// slabs can be promised for all of a read, the read is plain: its copies are enqueued on the stream as ordinary copies, and all of them
// run. If a request passes early, its stream does not wait for the count either, although that is set after the copies: the stream may pass
// a write before the bytes are in the file, and a read of them then starts later. Bytes that fail to arrive, or that are truncated from the
// file while it runs, become zeros.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/gate.hpp"
#include "core/planner.hpp"
#include "core/request/admission.hpp"
#include "core/stream/stream_block.hpp"
#include "core/stream/stream_memory.hpp"
#include "core/stream/stream_watch.hpp"
#include "device/device.hpp"
#include "penstock/engine.hpp"
#include "staging/work.hpp"

namespace penstock::core {

inline std::int64_t memory_offset_of(const stream_request& what) { return what.memory_offset != nullptr ? *what.memory_offset : 0; }

class stream_operation final : public slab_waiter, public stream_watched {
 public:
  // --- while it is queued, by the thread that queues it

  // admitted: contains its file; the stream provides the range. The memory is device memory.
  stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what);
  // Shows the request in profiling tools until it completes.
  void show_as(sys::nvtx_range range) noexcept { range_ = std::move(range); }
  // Reserves what its memory's location requires, and starts the work that may run ahead of the stream.
  status prepare(const staging::place& place, const seen_allocation& seen);
  // Ok: the request is on the stream, will complete, and reports its result in *bytes_done.
  status put_onto(device::session& session);
  // Call after either of these two functions has returned an error. Drops the work in flight and waits until the stream has passed what was
  // already enqueued.
  struct given_up {
    bool is_told = false;      // ended has been called
    bool lacks_bytes = false;  // ended was called early: the last bytes of the read have not been copied
    bool has_passed = false;
  };
  given_up give_up(device::session& session);

  // --- later, on any thread
  void resume(std::byte* slab) override;
  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept override;
  seen look() noexcept override;
  void end() noexcept override;

 private:
  static constexpr std::size_t most_parts = 12;  // in a wave

  enum class stage : std::uint8_t {
    queued,    // its values are not known
    running,   // its values have been read
    counting,  // the outcome is known; the stream is writing the count to the device
    due,       // the thread that holds the lock reports the outcome after releasing it
    telling,   // the outcome is being reported
    told,
    given_up,
  };

  // Waits for the slab of a plain read's line while earlier copies use it.
  struct line_heir final : slab_waiter {
    void retain() noexcept override { owner->retain(); }
    void release() noexcept override { owner->release(); }
    void resume(std::byte* slab) override { owner->inherit(of, slab); }
    [[nodiscard]] bool is_on_stream() const noexcept override { return owner->is_put_.load(std::memory_order_acquire); }
    stream_operation* owner = nullptr;
    std::size_t of = 0;
  };

  // A transfer between file and slab by one thread, or a fill that a remote source runs.
  struct part final : staging::work, source::far_fill {
    enum class step : std::uint8_t { carry, begin, over };
    bool run() override;
    void ended(io_result outcome_of_fill) noexcept override;
    stream_operation* owner = nullptr;
    step next = step::carry;
    std::size_t of = 0;  // the index of the wave's line
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    bool sent_at_once = false;
    io_result outcome;
  };

  // A wave in flight. Waves that share a table use the same line one after another.
  struct line {
    enum class is : std::uint8_t {
      free,      // no slab
      promised,  // for a plain read: earlier copies still use the slab
      open,      // for a plain read: the next wave may be read into the slab
      busy,      // a wave uses the slab
      carried,   // the same, and the transfer between file and slab is complete
    };
    // Returns the slab if this request owns it now, otherwise null.
    std::byte* release() noexcept { return std::exchange(state, is::free) >= is::open ? std::exchange(slab, nullptr) : slab = nullptr; }
    is state = is::free;
    std::byte* slab = nullptr;  // null: free
    line_heir heir;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t length = 0;
    std::size_t part_count = 0;
    std::size_t parts_left = 0;
    std::int64_t began_ns = 0;
    std::unique_ptr<part[]> parts;
  };

  ~stream_operation() = default;
  status find_room(const seen_allocation& seen);
  void make_lines();
  void begin_ahead();
  [[nodiscard]] bool may_begin_ahead();
  [[nodiscard]] bool must_wait_for_write() const;
  void note_write();

  // --- with lock_ held
  void go_to(stage next);
  void reached();
  void begin();
  void copied();
  [[nodiscard]] bool may_be_plain();
  [[nodiscard]] bool get_promises();
  status read_values();
  void start_waves();
  void start_wave(std::byte* slab);
  [[nodiscard]] bool wants_slab() noexcept { return !is_plain_ && started_ < needed_ && line_of(started_).slab == nullptr; }
  void carry(line& which);
  [[nodiscard]] std::uint64_t shortest_part() const noexcept;
  [[nodiscard]] std::size_t crew_for(std::uint64_t bytes) const;
  void let_copy(std::size_t index, std::uint64_t bytes);
  [[nodiscard]] device::segment segment_of(std::size_t index, std::byte* slab) const noexcept;
  void settle_reads();
  std::uint64_t settle_plain(line& which);
  void settle_write(line& which);
  io_result take_outcome(line& which);
  void drop_rest(std::size_t needed, status why);
  void end_if_done();
  [[nodiscard]] std::int64_t count() const noexcept;
  void let_go(line& which);
  void give_back(std::byte* slab);
  [[nodiscard]] line& line_of(std::size_t index) noexcept { return lines_[index % lines_.size()]; }

  // --- without lock_
  class visit;
  void tell();
  void inherit(std::size_t index, std::byte* slab);
  void finished(part& done);
  [[nodiscard]] static std::byte* memory_of(const part& which, const line& in) noexcept;
  io_result read(const part& which, const line& from);
  io_result write(const part& which, const line& from);
  [[nodiscard]] std::vector<planned_piece> plan_write(const part& which) const;

  // The values that a fixed request's pointers point to.
  struct fixed_values {
    std::size_t length = 0;
    std::int64_t offset = 0;
    std::int64_t memory_offset = 0;
  };

  in_flight in_flight_;
  std::shared_ptr<runtime> runtime_;
  admission admitted_;
  fixed_values fixed_;
  stream_request asked_;
  const bool is_write_;
  bool is_told_early_;
  const bool passes_early_;
  bool follows_write_ = false;  // a read of what an earlier request on a stream writes
  std::uint64_t stream_ = 0;    // its identity
  std::uint64_t room_ = 0;      // from memory to the end of its allocation
  std::int64_t* count_on_device_ = nullptr;
  stream_memory* memory_ = nullptr;  // null: the request has reserved none
  stream_block block_{0, {}};
  stream_write write_;  // registered with the stream_watch; not registered if it has no file
  std::atomic<int> references_{1};
  bool is_plain_ = false;            // decided before anything is enqueued on the stream
  std::atomic<bool> is_put_{false};  // all of it is on the stream

  std::mutex lock_;               // guards the members below; never held during a call into the device
  std::condition_variable idle_;  // no thread is transferring a part, or the outcome has been reported
  stage stage_ = stage::queued;
  bool is_reached_ = false;       // the stream has reached it
  std::size_t carried_now_ = 0;   // waves that threads are transferring
  std::size_t needed_ = 0;        // waves that the device must copy
  std::size_t started_ = 0;       // waves
  std::size_t settled_ = 0;       // waves of reads, in order; waves of writes, in any order
  std::size_t copied_ = 0;        // waves that the device has copied
  std::uint64_t last_bytes_ = 0;  // bytes of the last wave, if it is copied after the outcome was reported
  std::vector<line> lines_;       // one per wave in flight, all with the same number of parts
  std::size_t most_parts_ = 1;
  io_result outcome_;
  sys::nvtx_range range_;  // ends when the request completes
  bool is_cut_ = false;    // for a plain read: everything after a short or failed wave becomes zeros
  bool waits_for_slab_ = false;
  bool gave_slabs_ = false;  // other requests may be waiting for them
};

}  // namespace penstock::core
