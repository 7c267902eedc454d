// An object's bytes, which arrive in order from the start: the first 32 MiB are kept in memory, the rest in a temporary file. One thread at
// a time appends; any thread can read existing bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "penstock/status.hpp"
#include "sys/temporary_file.hpp"

namespace penstock::source::remote {

class stream_store {
 public:
  explicit stream_store(std::string folder) : folder_(std::move(folder)) {}

  // Stores bytes at an offset of at most size(). Bytes that are already stored must be equal. Blocks while a file is written. Errors: io
  // (the stored bytes differ; the disk is full), out_of_memory.
  status put(std::span<const std::byte> bytes, std::uint64_t offset);
  // Reads bytes below size(). Error: io.
  status read(std::byte* target, std::uint64_t length, std::uint64_t offset) const;
  [[nodiscard]] std::uint64_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  // Describes where the bytes are stored.
  [[nodiscard]] std::string told() const;

 private:
  static constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
  static constexpr std::size_t most_blocks = 32;
  static constexpr std::uint64_t most_memory = most_blocks * block_bytes;
  status append(std::span<const std::byte> bytes);
  status append_to_file(std::span<const std::byte> bytes);
  status compare(std::span<const std::byte> bytes, std::uint64_t offset) const;

  const std::string folder_;
  std::unique_ptr<std::unique_ptr<std::byte[]>[]> blocks_;
  mutable std::mutex lock_;  // guards the creation of file_
  std::optional<sys::temporary_file> file_;
  std::atomic<std::uint64_t> size_{0};
};

}  // namespace penstock::source::remote
