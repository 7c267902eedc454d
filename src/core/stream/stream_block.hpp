// The block of pinned memory that a stream-ordered request shares with its device: words that the stream waits for, words that it writes as
// it goes on, and tables that tell the copies on the stream what to carry. While the request is queued, all of that is put onto the stream;
// what it finds in the block is filled in as the stream gets there, by threads that never call the device.
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
  static constexpr std::size_t waves_at_once = 4;  // with a table each

  // For a request of at most so many bytes. aligned: it begins at the start of a block of the file. waits_for_end: the stream does, behind
  // the last wave. in_turn: it begins when its stream reaches it, so that waves are short: one is copied while the next comes.
  struct manner {
    bool aligned = false;
    bool waits_for_end = false;
    bool in_turn = false;
  };
  stream_block(std::uint64_t most_bytes, const manner& how) noexcept;

  [[nodiscard]] stream_memory::kind size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t wave_bytes() const noexcept { return wave_bytes_; }
  [[nodiscard]] std::size_t waves() const noexcept { return waves_; }  // that the stream waits for
  // Null until lie_in().
  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }
  // Of stream_memory::block_bytes(), whatever is in it.
  void lie_in(std::byte* memory) noexcept;

  // --- while the request is queued: each is put onto the stream behind what is there
  // Tells that the stream has got there, waits for the turn of the wave, and copies.
  status put_wave(device::session& session, device::stream on, std::size_t index) const;
  // Likewise a wave whose ends are known by now, so that the copy is a plain one: quicker than what a kernel finds in a table. Nothing is
  // told before the first.
  status put_plain_wave(device::session& session, device::stream on, std::size_t index, const device::segment& whole) const;
  // Behind the last wave. Tells, and waits until let_pass() where the stream is to; copies the count of bytes to memory of the device,
  // where there is a target; tells that the stream has passed.
  status put_end(device::session& session, device::stream on, std::int64_t* target) const;

  // --- as the stream gets there, by one thread at a time
  // It is the turn of the wave, which copies what the segment says.
  void let_copy(std::size_t index, const device::segment& whole) const noexcept;
  void let_copy_plainly(std::size_t index) const noexcept;
  // What put_end() copies. Before let_pass().
  void set_count(std::int64_t count) const noexcept { shared().count = count; }
  // The stream goes past all that it still waits for, and copies nothing more but what it may be copying now, since so many waves are known
  // to have been copied.
  void let_pass(std::size_t copied) const noexcept;
  void let_go_on() const noexcept;
  // What the stream has told: it has got there; so many waves have been copied; the count is
  // in memory of the device; it has passed, and the block may be another request's.
  [[nodiscard]] bool reached() const noexcept { return load(shared().reached) != 0; }
  [[nodiscard]] std::size_t copied() const noexcept { return passed() ? waves_ : load(shared().copied); }
  [[nodiscard]] bool counted() const noexcept { return load(shared().counted) != 0; }
  [[nodiscard]] bool passed() const noexcept { return load(shared().passed) != 0; }

 private:
  // At the start of the block; the tables follow. Words that the device waits for have a cache line each.
  struct words {
    alignas(64) std::uint32_t turn;   // waves that the device may copy
    alignas(64) std::uint32_t ended;  // 1: nothing more is to be waited for
    alignas(64) std::uint32_t told;   // 1: the end has been told, which waited for the count
    alignas(64) std::uint32_t reached;
    std::uint32_t copied;
    std::uint32_t counted;
    std::uint32_t passed;
    alignas(64) std::int64_t count;
    device::segment count_segment;
  };

  static std::uint32_t load(std::uint32_t& word) noexcept { return std::atomic_ref(word).load(std::memory_order_acquire); }
  // In a slab a wave lies as in the file, so that whole blocks around it can be read past the page cache: a page is lost at each end,
  // unless all waves begin with a block.
  static constexpr std::uint64_t most_bytes(stream_memory::kind of, bool aligned) noexcept {
    return stream_memory::slab_bytes(of) - (aligned ? 0 : 2 * path::direct_alignment);
  }
  static stream_memory::kind kind_for(std::uint64_t bytes, bool aligned) noexcept;
  [[nodiscard]] words& shared() const noexcept { return *reinterpret_cast<words*>(memory_); }
  [[nodiscard]] std::size_t tables() const noexcept { return std::min(waves_at_once, waves_); }
  // Of a wave; so many waves on, another has the same.
  [[nodiscard]] device::segment* table(std::size_t wave) const noexcept {
    return reinterpret_cast<device::segment*>(memory_ + sizeof(words)) + wave % tables() * segments_;
  }

  bool waits_for_end_;
  stream_memory::kind size_;
  std::uint64_t wave_bytes_;
  std::size_t waves_;
  std::size_t segments_;  // of a table
  std::byte* memory_ = nullptr;
};

}  // namespace penstock::core
