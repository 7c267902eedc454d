// A request that runs in the order of a device stream. While it is queued, all that the device has to do is put onto the stream: calls that
// tell how far the stream has come, and waits and copies of the block that they share (stream_block). From then on only threads that never
// call the device carry it, so it ends even where the driver has locked itself up until the stream goes on, and the host is not blocked.
// Counted by reference. What goes through at one time is a wave:
//
//   read    call `reached` | for each wave: wait for its turn, copy, call `copied` | call `passed`
//   write   the same, and before the last call a wait until all is written
#pragma once

#include <array>
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
#include "device/device.hpp"
#include "penstock/engine.hpp"
#include "staging/work.hpp"

namespace penstock::core {

inline std::int64_t memory_offset_of(const stream_request& what) { return what.memory_offset != nullptr ? *what.memory_offset : 0; }

class stream_operation final : public slab_waiter {
 public:
  // --- while it is queued, by the thread that does so

  // admitted: to its file; the range comes from the stream. The memory is of a device.
  stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what);
  // Gets what it needs of the place of its memory.
  status prepare(const staging::place& place);
  // Ok: it is on the stream, and will end, and say how in *bytes_done.
  status put_onto(device::session& session);
  // After an error of these two, and the last that may be done with it: drops what is under way, and waits until the stream has passed what
  // is on it already. False: that cannot be known.
  bool give_up(device::session& session);

  // --- later, on any thread
  void resume() override;
  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept override;

 private:
  static constexpr std::size_t most_parts = 4;

  enum class stage : std::uint8_t {
    queued,    // the stream has not got there
    running,   // its values have been read
    ended,     // the stream goes past it
    given_up,  // from any of those
    left,      // given up: nothing in it, and gone with the last call that is still to come
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
    io_result outcome;
  };

  // A wave under way: of those that share a table, one after the other.
  struct line {
    std::byte* slab = nullptr;  // null: free
    std::uint64_t offset = 0;   // in the file
    std::uint64_t length = 0;
    bool carried = false;  // between file and slab
    std::size_t part_count = 0;
    std::size_t parts_left = 0;
    std::int64_t began_ns = 0;
    std::array<part, most_parts> parts{};
  };

  ~stream_operation() = default;
  status find_room();
  status put_call(device::session& session, void (*function)(void*));

  // --- called by the stream, on a thread of the driver's
  template <void (stream_operation::*step)()>
  static void called(void* self);
  static void passed(void* self);

  // --- with lock_ held
  void go_to(stage next);
  void reached();
  void copied();
  status read_values();
  void start_waves();
  void start_wave(std::size_t index);
  void carry(line& which);
  void let_copy(std::size_t index, std::uint64_t bytes);
  void settle_reads();
  void settle_write(line& which);
  io_result take_outcome(line& which);
  void drop_rest(std::size_t needed, status why);
  void end_if_done();
  void let_go(line& which);
  [[nodiscard]] line& line_of(std::size_t index) noexcept { return lines_[index % lines_.size()]; }

  // --- without
  class visit;
  void finished(part& done);
  [[nodiscard]] static std::byte* memory_of(const part& which, const line& in) noexcept;
  io_result read(const part& which, const line& from);
  io_result write(const part& which, const line& from);
  [[nodiscard]] std::vector<planned_piece> plan_write(const part& which) const;

  std::shared_ptr<runtime> runtime_;
  admission admitted_;
  const stream_request asked_;
  const bool is_write_;
  bool emulated_ = false;
  std::uint64_t room_ = 0;  // from memory to the end of its allocation
  std::int64_t* count_on_device_ = nullptr;
  stream_memory* memory_ = nullptr;  // null: it has none of it
  stream_block block_{0, false};
  std::atomic<int> references_{1};

  std::mutex lock_;               // guards what follows; never held across a call of the device
  std::condition_variable idle_;  // nothing is carried now
  stage stage_ = stage::queued;
  std::size_t carried_now_ = 0;    // waves, by threads
  std::size_t calls_to_come_ = 0;  // but for the last
  std::size_t needed_ = 0;         // waves that the device is to copy
  std::size_t started_ = 0;        // waves
  std::size_t settled_ = 0;        // waves of reads, in order; waves of writes, in any
  std::size_t copied_ = 0;         // waves, by the device
  std::array<line, stream_block::waves_at_once> lines_{};
  io_result outcome_;
  bool waits_for_slab_ = false;
  bool gave_slabs_ = false;  // others may be waiting for them

  staging::work_list parts_;
  struct farewell final : staging::work {
    bool run() override;
    stream_operation* owner = nullptr;
    staging::work_list list;
  } farewell_;
};

}  // namespace penstock::core
