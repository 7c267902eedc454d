// What a test and the process that serves its FUSE mount share: one memory file, mapped by both. The control block comes first, then the
// content of each file, at content_at(). All members are atomic or written before what makes them visible.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock::testing {

// Calls of the mount that can be held; a mask.
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
  std::atomic<std::uint32_t> held_calls{0};         // of fuse_call: these are not answered while their bit is set
  std::atomic<std::uint32_t> delay_ms{0};           // before each read and write
  std::atomic<std::uint64_t> fails_from{never};     // reads at and past this offset are EIO
  std::atomic<std::uint64_t> full_from{never};      // writes at and past this offset are ENOSPC
  std::atomic<std::uint32_t> short_reads{0};        // 1: half of what was asked, and at least a byte
  std::atomic<std::uint32_t> short_writes{0};       // likewise
  std::atomic<std::uint32_t> refuses_direct{0};     // 1: it cannot be opened with O_DIRECT
  std::atomic<std::uint32_t> direct_io{0};          // 1: opened from now on without the page cache
  std::atomic<std::uint64_t> reads{0}, writes{0};   // begun
  std::atomic<std::uint32_t> held_now{0};           // calls that wait to be answered
};

struct fuse_control {
  static constexpr std::size_t most_files = 12;
  static constexpr std::uint64_t file_capacity_bytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t content_at(std::size_t file) { return (std::uint64_t{1} << 20) + file * file_capacity_bytes; }
  static constexpr std::uint64_t total_bytes() { return content_at(most_files); }

  enum stage : int { starting = 0, serving, failed };
  std::atomic<int> stage{starting};
  std::atomic<int> error{0};  // errno, when failed
  std::atomic<std::uint32_t> file_count{0};
  fuse_file_control files[most_files];
};
static_assert(sizeof(fuse_control) < (std::size_t{1} << 20));

}  // namespace penstock::testing
