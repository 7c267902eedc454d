// Sends a slab whose bytes go to many places, or to another device. One copy sends the slab to memory on this device. From there a kernel
// (or a copy, if there is only one place) moves the bytes to their places, on a separate stream, so that the link stays busy. (H200, 768
// KiB pieces: 53.6 GB/s; 33 with one copy per piece; 42 with a kernel that reads the slab in place.) For one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "device/device.hpp"
#include "device/owned.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::staging {

class unpacker {
 public:
  static constexpr std::size_t room_bytes = large_slab_bytes;
  static constexpr std::size_t room_count = 4;

  explicit unpacker(device::session& session) : session_(session) {}
  unpacker(const unpacker&) = delete;
  unpacker& operator=(const unpacker&) = delete;
  ~unpacker();  // nothing may be in flight

  // The bytes (at most room_bytes) to send from source, and the segments that specify their destinations. Only read during the call.
  struct load {
    std::span<const device::segment> segments;
    const std::byte* source = nullptr;
    std::size_t bytes = 0;
    bool elsewhere = false;  // to another device, whose memory this device's kernels may not be able to reach: one copy per segment
  };
  // Creates what issue() needs. Errors: those of issue().
  status prepare(bool needs_kernel);
  // Queues the copy on the stream `copies` and, after it, the moves of the segments on stream(). On failure nothing is in flight. Errors:
  // unsupported (no kernel), out_of_memory (of host or device).
  status issue(const load& what, device::stream copies);
  // Returns the stream on which the last issue() completes.
  [[nodiscard]] device::stream stream() const noexcept { return kernels_.get(); }
  // Returns the memory, for the caller to free, or null if there is none. The next issue() allocates it again. Nothing may be in flight.
  [[nodiscard]] std::byte* take_memory() noexcept { return std::exchange(memory_, nullptr); }

 private:
  // The part of the memory for one slab.
  struct room {
    device::owned_event copied;
    device::owned_event unpacked;
    bool used = false;
  };
  status queue(const load& what, device::stream copies);
  status bring(const load& what, const std::byte* room);

  device::session& session_;
  device::owned_stream kernels_;
  std::array<room, room_count> rooms_;
  std::byte* memory_ = nullptr;
  std::size_t next_ = 0;
};

}  // namespace penstock::staging
