// A request that runs in the order of a device stream. While it is queued, all that the device has to do is put onto the stream: calls that
// tell how far the stream has come, waits for words of pinned memory, and copies by the scatter kernel, whose tables are filled in later.
// From then on only threads that never call the device carry it, so it ends even where the driver has locked itself up until the stream
// goes on, and the host is not blocked. Counted by reference. What goes through at one time is a wave:
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

#include "core/admission.hpp"
#include "core/planner.hpp"
#include "core/stream_memory.hpp"
#include "device/device.hpp"
#include "penstock/engine.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class stream_operation final : public slab_waiter {
 public:
  // Ok: queued; the operation will end, and say how in *bytes_done. An error: it is over, and may have moved some of the bytes.
  static status queue(const std::shared_ptr<runtime>& with, const std::shared_ptr<file_core>& file, const stream_request& what,
                      bool is_write);

  void resume() override;
  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept override;

 private:
  using kind = stream_memory::kind;
  static constexpr std::size_t waves_at_once = 3;
  static constexpr std::size_t most_parts = 4;

  // What a thread moves between a file and a slab.
  struct part final : staging::work {
    bool run() override;
    stream_operation* owner = nullptr;
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

  // What device and host share, at the start of the block; the tables follow. Words that the device waits for have a line each.
  struct words {
    alignas(64) std::uint32_t turn;     // waves that the device may copy
    alignas(64) std::uint32_t written;  // 1: the file has everything
    alignas(64) std::int64_t count;     // for *bytes_done in device memory
    device::segment count_segment;
  };

  struct layout {
    kind size = kind::small;
    std::uint64_t wave_bytes = 0;
    std::size_t waves = 1;     // that the stream waits for
    std::size_t segments = 0;  // of a table
    std::uint64_t room = 0;    // from memory to the end of its allocation
  };

  stream_operation(std::shared_ptr<runtime> with, admission admitted, const stream_request& what);
  ~stream_operation() = default;

  // --- while it is queued
  status prepare(const staging::place& place);
  status put_onto(device::session& session);
  status put_call(device::session& session, void (*function)(void*));
  bool give_up(device::session& session);
  static status run_now(runtime& with, file_core& file, const stream_request& what, bool is_write);

  // --- called by the stream, on a thread of the driver
  static void reached(void* self);
  static void copied(void* self);
  static void passed(void* self);

  // --- with lock_ held
  void came();
  void begin();
  status read_values();
  void start_waves();
  void start_wave(line& next, std::uint64_t index);
  void carry(line& which);
  void settle_reads();
  void settle_write(line& which);
  void stop(status why);
  void end_if_done();
  void let_go(line& which);

  // --- without
  class visit;
  void finished(part& done);
  io_result read(const part& which, const line& from);
  io_result write(const part& which, const line& from);
  [[nodiscard]] std::vector<planned_piece> plan_write(const part& which) const;
  void clean_up();

  [[nodiscard]] words& shared() const noexcept { return *reinterpret_cast<words*>(block_); }
  [[nodiscard]] device::segment* table(std::size_t line_index) const noexcept;
  void fill_table(std::size_t line_index, const line& with, std::uint64_t bytes);

  std::shared_ptr<runtime> runtime_;
  admission admitted_;
  const stream_request asked_;
  const bool is_write_;
  bool emulated_ = false;
  std::int64_t* count_on_device_ = nullptr;
  layout layout_;
  stream_memory* memory_ = nullptr;
  std::byte* block_ = nullptr;
  std::atomic<int> references_{1};

  std::mutex lock_;               // guards what follows; never held across a call of the device
  std::condition_variable idle_;  // nothing is carried now
  std::size_t carried_now_ = 0;   // waves, by threads
  bool given_up_ = false;
  bool orphaned_ = false;  // given up, and gone with the last call that is still to come
  std::size_t calls_to_come_ = 0;
  bool waits_for_slab_ = false;
  bool stopped_ = false;  // short or failed: later waves are dropped
  bool ended_ = false;
  std::size_t needed_ = 0;   // waves that the device is to copy
  std::size_t started_ = 0;  // waves
  std::size_t settled_ = 0;  // waves of reads, in order; waves of writes, in any
  std::size_t copied_ = 0;   // waves, by the device
  std::array<line, waves_at_once> lines_{};
  io_result outcome_;
  bool gave_slabs_ = false;

  staging::work_list parts_;
  struct farewell final : staging::work {
    bool run() override;
    stream_operation* owner = nullptr;
    staging::work_list list;
  } farewell_;
};

}  // namespace penstock::core
