// One version of one object in the node's cache, open: a file of its bytes, sparse and of its size from the start, and its map. Blocks that
// are there are what the server sent. Processes claim the blocks that they fetch by a lock on their bytes in the map. Thread-safe.
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
#include "source/remote/cache_map.hpp"
#include "source/remote/cache_threads.hpp"
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
  // What it stands on, all of which outlives it; removed: has its files' names taken away.
  struct surroundings {
    sys::kernel& kernel;
    cache_threads& threads;
    std::function<void()> remove;
  };
  cache_entry(const surroundings& around, cache_map_head head, sys::owned_descriptor map, sys::owned_descriptor data)
      : around_(around), head_(std::move(head)), map_(std::move(map)), data_(std::move(data)) {}

  [[nodiscard]] const cache_map_head& head() const noexcept { return head_; }
  [[nodiscard]] std::uint64_t blocks() const noexcept { return cache_blocks_of(head_.size); }

  // --- block. A byte for each: whether it is there.
  [[nodiscard]] status states_of(std::uint64_t first, std::span<std::byte> into) noexcept;
  // Reads what is there, and compares the sums of all blocks that it touches. False: one is not what was stored.
  [[nodiscard]] result<bool> read(std::span<std::byte> into, std::uint64_t offset) noexcept;
  // They are not what was stored: they are there no more. Errors: those of the map.
  [[nodiscard]] status forget(const block_run& what) noexcept;
  // Of whole blocks that are claimed: writes them, and then says that they are there.
  [[nodiscard]] status store(std::span<const std::byte> from, std::uint64_t first) noexcept;
  // Whether all of it is there. Blocks of which that was seen once are not looked at again.
  [[nodiscard]] bool is_whole() noexcept;
  // Bytes that are there; reads all of the map.
  [[nodiscard]] std::uint64_t bytes_there() noexcept;

  // At once or not at all: nothing, they are this caller's; else the first of them that are another's, here or in another process.
  [[nodiscard]] result<std::optional<block_run>> claim(const block_run& what) noexcept;
  void let_go(const block_run& what) noexcept;

  // The files are not to be used any more, or nothing is to be written to them, and why; the last reason counts.
  void give_up(const status& why) noexcept { give_up(use::none, why); }
  void stop_storing(const status& why) noexcept { give_up(use::to_read, why); }
  [[nodiscard]] bool is_given_up() const noexcept { return use_.load(std::memory_order_acquire) == use::none; }
  [[nodiscard]] bool is_stored() const noexcept { return use_.load(std::memory_order_acquire) == use::to_write; }
  [[nodiscard]] status problem() const;

  // It is whole: notes when its data was changed last, has it brought to the disk on the cache's threads, a part at a time, and then says
  // so in the map. Only then it counts after the machine has been started anew.
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
  std::atomic<use> use_{use::to_write};  // becomes less, with the lock
  std::atomic<bool> sealing_begun_{false};
  std::shared_ptr<cache_entry> self_;  // while it is being sealed
  bool is_noted_ = false;              // when the data was changed last
  std::uint64_t on_the_way_ = 0;       // of what is to be sealed: bytes that have been sent to the disk
  mutable std::mutex lock_;            // guards what follows
  status problem_;
  std::vector<block_run> claimed_;
  std::uint64_t seen_there_ = 0;  // blocks, from the first on
};

}  // namespace penstock::source::remote
