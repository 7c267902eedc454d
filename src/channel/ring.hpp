// Moves bytes from one process to another through memory that both have mapped, like a socket with a fixed buffer. Values written by the
// other process are not trusted: each end keeps its own position in private memory and validates the other's.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "channel/permit.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// The state that the ends exchange. Initially zero.
struct ring_state {
  alignas(64) std::atomic<std::uint64_t> written{0};  // total bytes written
  std::atomic<std::uint32_t> writer_waits{0};         // nonzero: the writer waits for room and needs a wakeup
  alignas(64) std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint32_t> reader_watches{0};  // nonzero: the reader is polling and needs no wakeup
};

// Not thread-safe.
class ring_writer {
 public:
  ring_writer(ring_state& state, std::span<std::byte> memory) noexcept : state_(&state), memory_(memory) {}
  // Returns the number of bytes written. Errors: would_block if there is no room (the reader wakes the writer once there is); io if the
  // peer has corrupted the ring.
  result<std::size_t> write(std::span<const iovec> parts);
  // Returns true if the reader must be woken after a write.
  [[nodiscard]] bool must_call() noexcept;

 private:
  [[nodiscard]] std::size_t room() const noexcept;

  ring_state* state_;
  std::span<std::byte> memory_;
  std::uint64_t written_ = 0;
};

// Not thread-safe, unless noted otherwise.
class ring_reader {
 public:
  ring_reader(ring_state& state, std::span<const std::byte> memory) noexcept : state_(&state), memory_(memory) {}
  // Returns the number of bytes read. Errors: would_block if the ring is empty; io if the peer has corrupted the ring.
  result<std::size_t> read(const iovec& into);
  // Returns true if the writer must be woken because there is now room.
  [[nodiscard]] bool must_call() noexcept;
  // Returns true if there is something to read. Only a hint. Any thread.
  [[nodiscard]] bool something() const noexcept;
  // Any thread. watch(): the reader polls and needs no wakeup. sleep(): the reader needs to be woken again; returns false if something has
  // already arrived.
  void watch() noexcept;
  [[nodiscard]] bool sleep() noexcept;

 private:
  ring_state* state_;
  std::span<const std::byte> memory_;
  std::atomic<std::uint64_t> read_{0};
};

// Two rings, one per direction, in one region.
class ring_pair {
 public:
  static constexpr std::size_t ring_bytes = std::size_t{256} << 10;
  static constexpr std::size_t head_bytes = 4096;
  static constexpr std::size_t bytes = head_bytes + 2 * ring_bytes;
  static constexpr std::size_t permits_at = 2048;
  static_assert(2 * sizeof(ring_state) <= permits_at);
  static_assert(permits_at + 2 * permit::count * sizeof(std::atomic<std::uint32_t>) <= head_bytes);

  // memory: a region of `bytes` bytes, zero until both ends have started. first: true for the process that created it.
  ring_pair(sys::shared_region memory, bool first) noexcept;
  [[nodiscard]] std::span<std::byte> permit_region() const noexcept { return {memory_.data(), head_bytes}; }
  // Return a local permit, and one of the peer's.
  [[nodiscard]] permit own_permit(std::uint32_t slot, std::uint32_t turn) const noexcept { return {word(first_ ? 0 : 1, slot), turn}; }
  [[nodiscard]] permit permit_of_other(std::uint32_t slot, std::uint32_t turn) const noexcept { return {word(first_ ? 1 : 0, slot), turn}; }

 private:
  [[nodiscard]] ring_state& state(std::size_t index) const noexcept;
  [[nodiscard]] std::span<std::byte> ring(std::size_t index) const noexcept;
  [[nodiscard]] std::atomic<std::uint32_t>& word(std::size_t index, std::uint32_t slot) const noexcept;

  const sys::shared_region memory_;
  const bool first_;

 public:
  ring_writer out;
  ring_reader in;
};

}  // namespace penstock::channel
