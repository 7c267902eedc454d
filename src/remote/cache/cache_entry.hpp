// An open version of an object in the node's cache: a sparse data file with the object's size, and its map. Blocks marked present contain
// the server's bytes. A process claims the blocks that it fetches by locking their bytes in the map. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "remote/cache/cache_map.hpp"
#include "remote/cache/cache_threads.hpp"
#include "sys/cache_folder.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

struct block_run {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  [[nodiscard]] std::uint64_t end() const noexcept { return first + count; }
};

class cache_entry final : public cache_work, public std::enable_shared_from_this<cache_entry> {
 public:
  // Dependencies; all must outlive the entry. remove: unlinks the files.
  struct surroundings {
    sys::kernel& kernel;
    cache_threads& threads;
    std::function<void()> remove;
  };
  cache_entry(const surroundings& around, cache_map_head head, sys::owned_descriptor map, sys::owned_descriptor data)
      : around_(around), head_(std::move(head)), map_(std::move(map)), data_(std::move(data)) {}

  [[nodiscard]] const cache_map_head& head() const noexcept { return head_; }
  [[nodiscard]] std::uint64_t blocks() const noexcept { return cache_blocks_of(head_.size); }

  // --- blocks
  // Fills `into` with one byte per block, which says whether the block is present.
  [[nodiscard]] status states_of(std::uint64_t first, std::span<std::byte> into) noexcept;
  // Reads the blocks that are present and verifies the checksums of all blocks that the range touches. Returns false if one does not match.
  [[nodiscard]] result<bool> read(std::span<std::byte> into, std::uint64_t offset) noexcept;
  // Marks blocks that do not match their checksums as absent. Errors: those of the map.
  [[nodiscard]] status forget(const block_run& what) noexcept;
  // Writes whole claimed blocks, then marks them present.
  [[nodiscard]] status store(std::span<const std::byte> from, std::uint64_t first) noexcept;
  // Returns true if all blocks are present. Does not recheck blocks that it has already found present.
  [[nodiscard]] bool is_whole() noexcept;
  // Returns the number of bytes in present blocks. Reads the whole map.
  [[nodiscard]] std::uint64_t bytes_there() noexcept;

  // Claims all blocks or none, without waiting. Returns nullopt if the caller now owns them; otherwise the first run of them that another
  // caller, in this or another process, has claimed.
  [[nodiscard]] result<std::optional<block_run>> claim(const block_run& what) noexcept;
  void let_go(const block_run& what) noexcept;

  // Stop using the files, or stop writing to them, for the given reason. The last reason is kept.
  void give_up(const status& why) noexcept { give_up(use::none, why); }
  void stop_storing(const status& why) noexcept { give_up(use::to_read, why); }
  [[nodiscard]] bool is_given_up() const noexcept { return use_.load(std::memory_order_acquire) == use::none; }
  [[nodiscard]] bool is_stored() const noexcept { return use_.load(std::memory_order_acquire) == use::to_write; }
  [[nodiscard]] status problem() const;

  // Seals a complete entry: records when its data last changed, writes it to disk on the cache's threads, one part at a time, then marks it
  // sealed in the map. After a reboot, only sealed entries are used.
  void begin_sealing() noexcept;

 private:
  enum class use : std::uint8_t { none, to_read, to_write };
  void give_up(use left, const status& why) noexcept;
  void run() noexcept override;
  [[nodiscard]] result<bool> holds_run(std::span<std::byte> into, std::uint64_t first) noexcept;
  [[nodiscard]] result<bool> holds_part(std::span<std::byte> into, std::uint64_t offset) noexcept;
  [[nodiscard]] status read_data(std::span<std::byte> into, std::uint64_t offset) noexcept;
  [[nodiscard]] status write_head(bool sealed) noexcept;
  [[nodiscard]] status seal() noexcept;

  const surroundings around_;
  const cache_map_head head_;
  const sys::owned_descriptor map_;
  const sys::owned_descriptor data_;
  const sys::not_inherited map_alone_{map_.get()};
  const sys::not_inherited data_alone_{data_.get()};
  std::atomic<use> use_{use::to_write};  // only decreases, under lock_
  std::atomic<bool> sealing_begun_{false};
  std::shared_ptr<cache_entry> self_;  // set while sealing
  bool is_noted_ = false;              // the time of the data's last change has been recorded
  std::uint64_t on_the_way_ = 0;       // while sealing: bytes being written to the disk
  mutable std::mutex lock_;            // guards the members below
  status problem_;
  std::vector<block_run> claimed_;
  std::uint64_t seen_there_ = 0;  // leading blocks found present
};

}  // namespace penstock::source::remote
