// The memory that a test shares with the process that serves its FUSE mount: one memory file, mapped by both. The control block comes
// first, then the content of each file, at content_at(). All members are atomic, or are written before the store that publishes them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock::testing {

// Calls of the mount that can be held, as a bit mask.
enum fuse_call : std::uint32_t {
  fuse_reads = 1,
  fuse_writes = 2,
  fuse_attributes = 4,
  fuse_opens = 8,
  fuse_syncs = 16,
};

struct fuse_file_control {
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  char name[40] = {};
  std::atomic<std::uint64_t> size_bytes{0};
  std::atomic<std::uint64_t> claimed_bytes{never};  // st_size; never: the true one
  std::atomic<std::uint32_t> held_calls{0};         // mask of fuse_call: calls are not answered while their bit is set
  std::atomic<std::uint32_t> delay_ms{0};           // before each read and write
  std::atomic<std::uint64_t> fails_from{never};     // reads at or past this offset return EIO
  std::atomic<std::uint64_t> full_from{never};      // writes at or past this offset return ENOSPC
  std::atomic<std::uint32_t> short_reads{0};        // 1: half of the requested bytes, at least one
  std::atomic<std::uint32_t> short_writes{0};       // the same for writes
  std::atomic<std::uint32_t> refuses_direct{0};     // 1: opening with O_DIRECT fails
  std::atomic<std::uint32_t> direct_io{0};          // 1: later opens bypass the page cache
  std::atomic<std::uint64_t> reads{0}, writes{0};   // started so far
  std::atomic<std::uint32_t> held_now{0};           // calls that wait for their answer
};

struct fuse_control {
  static constexpr std::size_t most_files = 12;
  static constexpr std::uint64_t file_capacity_bytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t content_at(std::size_t file) { return (std::uint64_t{1} << 20) + file * file_capacity_bytes; }
  static constexpr std::uint64_t total_bytes() { return content_at(most_files); }

  enum stage : int { starting = 0, serving, failed };
  std::atomic<int> stage{starting};
  std::atomic<int> error{0};  // errno, if the server failed
  std::atomic<std::uint32_t> file_count{0};
  fuse_file_control files[most_files];
};
static_assert(sizeof(fuse_control) < (std::size_t{1} << 20));

}  // namespace penstock::testing
