// Device memory that a drive reads and writes directly. It is registered with a ring as dma-bufs, each for one file, which stay registered
// for the next request. There is one object per drive or file system. Thread-safe: one request uses the ring at a time, so requests on one
// drive take turns of at most turn_bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "device/device.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"
#include "sys/kernel.hpp"
#include "sys/peer.hpp"

namespace penstock::path {

class lent_memory {
 public:
  static constexpr std::size_t most_loans = 16;  // the slots of a ring
  static constexpr std::uint64_t turn_bytes = std::uint64_t{16} << 20;

  // Whole blocks (direct_alignment) of memory and of a file with a direct descriptor.
  struct extent {
    source::source* file = nullptr;
    device::session* session = nullptr;
    std::byte* memory = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    bool is_write = false;
  };
  struct outcome {
    std::uint64_t bytes = 0;  // transferred, from the start; nothing is known about the bytes after them
    std::uint64_t asked =
        0;  // requested from the drive; fewer bytes with an ok error: the drive returned no more; 0: the memory could not be lent
    status error;
    bool is_in_doubt = false;  // the ring has failed, and the drive may still transfer bytes of the extent at any time
  };

  // window_bytes: how much of an allocation is lent at a time, a multiple of the page size.
  lent_memory(sys::kernel& kernel, std::uint64_t window_bytes) : kernel_(kernel), window_bytes_(window_bytes) {}
  lent_memory(const lent_memory&) = delete;
  lent_memory& operator=(const lent_memory&) = delete;
  ~lent_memory() = default;

  // Transfers the start of an extent. Blocks until the drive has answered. Errors: the device's, if it does not lend this memory; the
  // kernel's, with the words "does not accept dma-bufs" if the file system or the drive does not support them; io.
  outcome move(const extent& of);

  // Unregister the memory lent to a file, the memory of the allocation that contains an address, or all of it. Each waits for its turn.
  void forget(const source::source& file);
  void forget_memory(const std::byte* address);
  void trim();
  // Like trim(), but also closes the ring until the next transfer. Error: unsupported if the ring has failed and therefore stays open.
  status rest();

 private:
  struct loan {
    const source::source* file = nullptr;  // null: the slot is free
    device::session* session = nullptr;
    device::allocation of;
    std::byte* base = nullptr;  // start of the lent part
    std::uint64_t bytes = 0;
    std::uint64_t last_use = 0;
    sys::owned_descriptor dma_buf;
  };
  struct piece;

  result<unsigned> lend(const extent& of);
  result<unsigned> find_or_free(const extent& of, const device::allocation& in);
  result<loan> window_of(const extent& of, const device::allocation& in) const;
  status add(unsigned slot, loan made, const source::source& file, int descriptor);
  void let_go(unsigned slot) noexcept;
  template <class Which>
  void let_go_where(Which which) noexcept;
  outcome transfer(unsigned slot, std::uint64_t at, std::uint64_t bytes, const extent& of);
  bool queue(piece& next, std::uint64_t token, unsigned slot, const extent& of);
  void abandon() noexcept;

  sys::kernel& kernel_;
  const std::uint64_t window_bytes_;
  std::mutex turn_;  // held by the request that uses the ring, even while the drive works for it, because the ring is for one thread at a
                     // time
  std::array<loan, most_loans> loans_;  // by slot
  std::unique_ptr<sys::ring> ring_;     // destroyed before the descriptors of the memory registered with it
  std::uint64_t uses_ = 0;
  bool is_dead_ = false;  // the ring no longer answers
};

}  // namespace penstock::path
