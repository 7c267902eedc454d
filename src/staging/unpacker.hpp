// Sends a slab whose bytes go to many places, or to another device: in one copy to memory of this device, from where a kernel (or a copy,
// where there is one place) brings them there, on a stream of its own, so that the link goes on meanwhile. (H200, pieces of 768 KiB: 53.6
// GB/s; a copy for each 33, a kernel that reads the slab in place 42.) For one thread at a time.
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
  ~unpacker();  // nothing is under way

  // What is sent: bytes (at most room_bytes) from source on, of which each segment has its place. Read by the call.
  struct load {
    std::span<const device::segment> segments;
    const std::byte* source = nullptr;
    std::size_t bytes = 0;
    bool elsewhere = false;  // to another device, whose memory kernels of this one may not reach: by a copy for each segment
  };
  // Makes what issue() needs. Errors: as of that.
  status prepare(bool needs_kernel);
  // Queues the copy onto copies, and behind it, onto stream(), what brings each segment to its place. When it fails nothing of it is under
  // way. Errors: unsupported (no kernel), out_of_memory (of the device, too).
  status issue(const load& what, device::stream copies);
  // Where the last issue() ends.
  [[nodiscard]] device::stream stream() const noexcept { return kernels_.get(); }
  // The memory, for the caller to give back; null where there is none. The next issue() allocates it again. Nothing may be under way.
  [[nodiscard]] std::byte* take_memory() noexcept { return std::exchange(memory_, nullptr); }

 private:
  // A part of the memory, for one slab.
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
