// A request that runs in the order of a device stream. While it is queued, all that the device has to do is put onto the stream: waits and
// copies of the block that they share (stream_block), and words by which it tells how far it has come, which the stream_watch sees. From
// then on only threads that never call the device carry it, so it ends even where the driver has locked itself up until the stream goes on,
// and the host is not blocked. Counted by reference. What goes through at one time is a wave:
//
//   read    tell `reached` | for each wave: wait for its turn, copy, tell `copied` | wait until the count is told | tell `passed`
//   write   the same, and the count is told when all is written
//
// One whose values are fixed begins when it is queued, as far as slabs are there: reads are in slabs when the stream comes. Where it may be
// told early, the stream of a read does not wait for that: the count is told before the last wave is copied. Where slabs can be promised
// for all of a read, it is plain: its copies are put onto the stream as such, and all of them are made. What fails to come, or is cut off
// from the file meanwhile, comes as zeros.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

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
  // --- while it is queued, by the thread that does so

  // admitted: to its file; the range comes from the stream. The memory is of a device.
  stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what);
  // Shown to tools until it ends.
  void show_as(sys::nvtx_range range) noexcept { range_ = std::move(range); }
  // Gets what it needs of the place of its memory, and begins what may be done ahead of the stream.
  status prepare(const staging::place& place, const seen_allocation& seen);
  // Ok: it is on the stream, and will end, and say how in *bytes_done.
  status put_onto(device::session& session);
  // After an error of these two: drops what is under way, and waits until the stream has passed what is on it already.
  struct given_up {
    bool is_told = false;      // ended has been called
    bool lacks_bytes = false;  // it was called early: the last bytes of the read have not been copied
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
  static constexpr std::size_t most_parts = 12;  // of a wave

  enum class stage : std::uint8_t {
    queued,   // its values are not known
    running,  // they have been read
    ended,    // the outcome is known, and is told
    given_up,
  };

  // The line of a plain read whose slab is still in use before it.
  struct line_heir final : slab_waiter {
    void retain() noexcept override { owner->retain(); }
    void release() noexcept override { owner->release(); }
    void resume(std::byte* slab) override { owner->inherit(of, slab); }
    [[nodiscard]] bool is_on_stream() const noexcept override { return owner->is_put_.load(std::memory_order_acquire); }
    stream_operation* owner = nullptr;
    std::size_t of = 0;
  };

  // What a thread moves between a file and a slab; or has a far source begin, and hears of.
  struct part final : staging::work, source::far_fill {
    enum class step : std::uint8_t { carry, begin, over };
    bool run() override;
    void ended(io_result outcome_of_fill) noexcept override;
    stream_operation* owner = nullptr;
    step next = step::carry;
    std::size_t of = 0;  // index of its wave's line
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    bool sent_at_once = false;
    io_result outcome;
  };

  // A wave under way: of those that share a table, one after the other.
  struct line {
    std::byte* slab = nullptr;  // null: free
    bool is_owned = false;      // and the slab is this request's by now
    bool is_open = false;       // of a plain read: the next wave may be brought into it
    line_heir heir;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t length = 0;
    bool carried = false;  // between file and slab
    std::size_t part_count = 0;
    std::size_t parts_left = 0;
    std::int64_t began_ns = 0;
    std::unique_ptr<part[]> parts;
  };

  ~stream_operation() = default;
  status find_room(const seen_allocation& seen);
  void make_lines();
  void begin_ahead();
  [[nodiscard]] bool may_begin_ahead() const;
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
  void begin_to_tell() noexcept;
  [[nodiscard]] std::int64_t count() const noexcept;
  void let_go(line& which);
  void give_back(std::byte* slab);
  [[nodiscard]] line& line_of(std::size_t index) noexcept { return lines_[index % lines_.size()]; }

  // --- without
  class visit;
  void tell();
  void inherit(std::size_t index, std::byte* slab);
  void finished(part& done);
  [[nodiscard]] static std::byte* memory_of(const part& which, const line& in) noexcept;
  io_result read(const part& which, const line& from);
  io_result write(const part& which, const line& from);
  [[nodiscard]] std::vector<planned_piece> plan_write(const part& which) const;

  // What the pointers of a request that is fixed lead to.
  struct fixed_values {
    std::size_t length = 0;
    std::int64_t offset = 0;
    std::int64_t memory_offset = 0;
  };

  std::shared_ptr<runtime> runtime_;
  admission admitted_;
  fixed_values fixed_;
  stream_request asked_;
  const bool is_write_;
  bool is_told_early_;
  std::uint64_t stream_ = 0;  // its identity
  bool emulated_ = false;
  std::uint64_t room_ = 0;  // from memory to the end of its allocation
  std::int64_t* count_on_device_ = nullptr;
  stream_memory* memory_ = nullptr;  // null: it has none of it
  stream_block block_{0, {}};
  stream_write write_;  // while it is noted; of no source: it is not
  std::atomic<int> references_{1};
  bool is_plain_ = false;            // decided before anything is put onto the stream
  std::atomic<bool> is_put_{false};  // all of it onto the stream

  std::mutex lock_;               // guards what follows; never held across a call of the device
  std::condition_variable idle_;  // nothing is carried now, or the outcome has been told
  stage stage_ = stage::queued;
  bool is_reached_ = false;  // by the stream
  bool is_to_tell_ = false;  // by whoever has the lock, when that is open
  bool is_telling_ = false;  // from then on
  bool is_told_ = false;
  std::size_t carried_now_ = 0;   // waves, by threads
  std::size_t needed_ = 0;        // waves that the device is to copy
  std::size_t started_ = 0;       // waves
  std::size_t settled_ = 0;       // waves of reads, in order; waves of writes, in any
  std::size_t copied_ = 0;        // waves, by the device
  std::uint64_t last_bytes_ = 0;  // of the last wave, where it is copied once the outcome has been told
  std::vector<line> lines_;       // for so many waves at once; of so many parts each
  std::size_t most_parts_ = 1;
  io_result outcome_;
  sys::nvtx_range range_;  // until it ends
  bool is_cut_ = false;    // of a plain read: what comes after a wave that was short or failed is zeros
  bool waits_for_slab_ = false;
  bool gave_slabs_ = false;  // others may be waiting for them
};

}  // namespace penstock::core
