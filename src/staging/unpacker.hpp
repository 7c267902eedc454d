// Sends a slab whose bytes go to many places: in one copy to memory of the device, from where a kernel brings them to their places, on a
// stream of its own, so that the link goes on meanwhile. (H200, pieces of 768 KiB: 53.6 GB/s; a copy for each 33, a kernel that reads the
// slab in place 42.) For one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>

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

  // Queues the copy of bytes (at most room_bytes) from source onto copies, and behind it, onto stream(), what brings each segment to its
  // place. Segments lie in those bytes, and are read by the call. When it fails nothing of it is under way. Errors: unsupported (no
  // kernel), out_of_memory (of the device, too).
  status issue(std::span<const device::segment> segments, const std::byte* source, std::size_t bytes, device::stream copies);
  // Where the last issue() ends.
  [[nodiscard]] device::stream stream() const noexcept { return kernels_.get(); }
  // Gives the memory back, which the next issue() takes again. Nothing may be under way.
  void trim() noexcept;

 private:
  // A part of the memory, for one slab.
  struct room {
    device::owned_event copied;
    device::owned_event unpacked;
    bool used = false;
  };
  status prepare();
  status queue(std::span<const device::segment> segments, const std::byte* source, std::size_t bytes, device::stream copies);

  device::session& session_;
  device::owned_stream kernels_;
  std::array<room, room_count> rooms_;
  std::byte* memory_ = nullptr;
  std::size_t next_ = 0;
};

}  // namespace penstock::staging
