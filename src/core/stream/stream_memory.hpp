// Pinned memory of stream-ordered requests. What a request needs is set aside while it is queued, since nothing that runs while it holds a
// stream may call the device: the driver may have locked itself up until that stream goes on (in cuMemFree, or to load a kernel).
// Slabs and blocks come from a pool and go back when no such request is left. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/intrusive_list.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::core {

// A request that waits for a slab.
class slab_waiter {
 public:
  virtual void retain() noexcept = 0;
  virtual void release() noexcept = 0;
  // One may be free.
  virtual void resume() = 0;

 protected:
  ~slab_waiter() = default;

 private:
  friend class stream_memory;
  slab_waiter* next_waiting_ = nullptr;
};

class stream_memory {
 public:
  // Of a request of one small wave, or of one of any length.
  enum class kind : std::uint8_t { small, large };
  static constexpr std::size_t slab_bytes(kind of) noexcept { return of == kind::small ? staging::small_slab_bytes : large_slab; }
  // Of the block that a request has to itself.
  static constexpr std::size_t block_bytes(kind of) noexcept { return of == kind::small ? 2048 : 20480; }

  explicit stream_memory(staging::slab_pool& pool) : pool_(pool) {}
  stream_memory(const stream_memory&) = delete;
  stream_memory& operator=(const stream_memory&) = delete;

  // Begins the use by a request: a block of zeros for it, and slabs enough that it can run. May pin memory. Waits a second at most.
  // Errors: out_of_memory, and those of pinning.
  result<std::byte*> enter(kind of, device::session& session);
  // Ends it.
  void leave(kind of, std::byte* block);
  // A block or slab that the device may still use is never given back. leave() without a block follows.
  void lose(kind of, const std::byte* memory);

  // A slab; null when none is free: then resume() of `waiting` is called once when one may be.
  std::byte* take_slab(kind of, slab_waiter& waiting);
  // Gives one back, before leave(); then wake() is to be called, without a lock that resume() takes.
  void put_slab(kind of, std::byte* slab);
  void wake(kind of);
  // Waits no more.
  void forget(kind of, const slab_waiter& waiting);

 private:
  static constexpr std::size_t large_slab = std::size_t{4} << 20;
  static constexpr std::size_t most_slabs = 8;  // of a kind: one is filled while others are copied
  static constexpr std::size_t blocks_per_slab(kind of) noexcept { return staging::small_slab_bytes / block_bytes(of); }
  static constexpr unsigned most_waits = 1000;

  struct share {
    std::size_t users = 0;
    std::vector<staging::slab> slabs;  // all that were taken from the pool to carry bytes
    std::vector<std::byte*> free_slabs;
    std::vector<staging::slab> block_slabs;  // and those that were cut into blocks
    std::vector<std::byte*> free_blocks;
    intrusive_list<slab_waiter, &slab_waiter::next_waiting_> waiting;
  };
  share& of(kind which) noexcept { return shares_[static_cast<std::size_t>(which)]; }
  result<std::byte*> block_for(kind which, device::session& session);
  status slabs_for(kind which, device::session& session);
  result<staging::slab> take_from_pool(std::size_t bytes, device::session& session, bool wait);

  staging::slab_pool& pool_;
  std::mutex lock_;  // guards the shares; never held across a call of the device
  share shares_[2];
};

}  // namespace penstock::core
