// The block of pinned memory that a stream-ordered request shares with its device: words that the stream waits for, words that it writes as
// it progresses, and tables that specify what the copies on the stream must copy. All waits and copies are enqueued on the stream when the
// request is queued. Threads that never call the device fill in the block when the stream reaches it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/stream/stream_memory.hpp"
#include "device/device.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

class stream_block {
 public:
  static constexpr std::size_t waves_at_once = 4;  // each has its own table

  // most_bytes: the maximum length of the request. aligned: it starts at a block boundary in the file. waits_for_end: the stream waits
  // after the last wave. in_turn: the request starts when its stream reaches it, so waves are short: one is copied while the next is read.
  struct manner {
    bool aligned = false;
    bool waits_for_end = false;
    bool in_turn = false;
  };
  stream_block(std::uint64_t most_bytes, const manner& how) noexcept;

  [[nodiscard]] stream_memory::kind size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t wave_bytes() const noexcept { return wave_bytes_; }
  [[nodiscard]] std::size_t waves() const noexcept { return waves_; }  // the number of waves that the stream waits for
  // Null before lie_in().
  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }
  // Sets the memory, whose size is stream_memory::block_bytes(). Its contents are ignored.
  void lie_in(std::byte* memory) noexcept;

  // --- while the request is queued: each call appends to the stream
  // Reports that the stream has reached the wave, waits for the wave's turn, and copies it.
  status put_wave(device::session& session, device::stream on, std::size_t index) const;
  // Does the same for a wave whose source and target are already known. Uses a plain copy, which is faster than a kernel that reads a
  // table. Nothing is reported before the first wave.
  status put_plain_wave(device::session& session, device::stream on, std::size_t index, const device::segment& whole) const;
  // Call after the last wave. Reports, and waits for let_pass() if waits_for_end is set. Copies the byte count to target, if given, which
  // must be in device memory. Reports that the stream has passed.
  status put_end(device::session& session, device::stream on, std::int64_t* target) const;

  // --- when the stream reaches the request, by one thread at a time
  // Lets the wave copy the bytes that the segment describes.
  void let_copy(std::size_t index, const device::segment& whole) const noexcept;
  void let_copy_plainly(std::size_t index) const noexcept;
  // Sets the count that put_end() copies. Call it before let_pass().
  void set_count(std::int64_t count) const noexcept { shared().count = count; }
  // Lets the stream pass everything that it still waits for. It copies nothing more, except a copy that may be in progress. copied: the
  // number of waves known to have been copied.
  void let_pass(std::size_t copied) const noexcept;
  void let_go_on() const noexcept;
  // The stream's reports: it has reached the request; the number of waves copied; the count is in device memory; it has passed, so that
  // another request may use the block.
  [[nodiscard]] bool reached() const noexcept { return load(shared().reached) != 0; }
  [[nodiscard]] std::size_t copied() const noexcept { return passed() ? waves_ : load(shared().copied); }
  [[nodiscard]] bool counted() const noexcept { return load(shared().counted) != 0; }
  [[nodiscard]] bool passed() const noexcept { return load(shared().passed) != 0; }

 private:
  // At the start of the block, followed by the tables. Each word that the device waits for has its own cache line.
  struct words {
    alignas(64) std::uint32_t turn;   // number of waves that the device may copy
    alignas(64) std::uint32_t ended;  // 1: stop waiting
    alignas(64) std::uint32_t told;   // 1: the completion, which waited for the count, has been reported
    alignas(64) std::uint32_t reached;
    std::uint32_t copied;
    std::uint32_t counted;
    std::uint32_t passed;
    alignas(64) std::int64_t count;
    device::segment count_segment;
  };

  static std::uint32_t load(std::uint32_t& word) noexcept { return std::atomic_ref(word).load(std::memory_order_acquire); }
  // A wave has the same alignment in its slab as in the file, so that it can be read in whole blocks past the page cache. This takes an
  // extra page at each end, unless all waves start at a block boundary.
  static constexpr std::uint64_t most_bytes(stream_memory::kind of, bool aligned) noexcept {
    return stream_memory::slab_bytes(of) - (aligned ? 0 : 2 * path::direct_alignment);
  }
  static stream_memory::kind kind_for(std::uint64_t bytes, bool aligned) noexcept;
  [[nodiscard]] words& shared() const noexcept { return *reinterpret_cast<words*>(memory_); }
  [[nodiscard]] std::size_t tables() const noexcept { return std::min(waves_at_once, waves_); }
  // The table of a wave. Every tables()-th wave uses the same table.
  [[nodiscard]] device::segment* table(std::size_t wave) const noexcept {
    return reinterpret_cast<device::segment*>(memory_ + sizeof(words)) + wave % tables() * segments_;
  }

  bool waits_for_end_;
  stream_memory::kind size_;
  std::uint64_t wave_bytes_;
  std::size_t waves_;
  std::size_t segments_;  // number of segments in a table
  std::byte* memory_ = nullptr;
};

}  // namespace penstock::core
