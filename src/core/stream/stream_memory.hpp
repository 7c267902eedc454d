// Pinned memory for stream-ordered requests. A request reserves what it needs when it is queued, because code that runs while it blocks a
// stream must not call the device: the driver may itself be blocked until that stream continues (in cuMemFree, or while loading a kernel).
// Slabs and blocks come from a pool and are returned when there are no such requests left. Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/intrusive_list.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::core {

// Waits for a slab.
class slab_waiter {
 public:
  virtual void retain() noexcept = 0;
  virtual void release() noexcept = 0;
  // Delivers the slab.
  virtual void resume(std::byte* slab) = 0;
  // Returns true if all of this waiter's uses of the slab have been enqueued on its stream.
  [[nodiscard]] virtual bool is_on_stream() const noexcept { return false; }

 protected:
  ~slab_waiter() = default;

 private:
  friend class stream_memory;
  slab_waiter* next_waiting_ = nullptr;
  std::byte* promised_ = nullptr;  // became free for this waiter
};

class stream_memory {
 public:
  // The kind of request: a single wave (small or medium), or any length.
  enum class kind : std::uint8_t { small, medium, large };
  static constexpr std::size_t slab_bytes(kind of) noexcept { return share_of[static_cast<std::size_t>(of)].slab_bytes; }
  // The size of the block that each request owns.
  static constexpr std::size_t block_bytes(kind of) noexcept { return share_of[static_cast<std::size_t>(of)].block_bytes; }

  explicit stream_memory(staging::slab_pool& pool) : pool_(pool) {}
  stream_memory(const stream_memory&) = delete;
  stream_memory& operator=(const stream_memory&) = delete;

  // Registers a request that needs at_once slabs at a time. Returns a block for it, and ensures that there are enough slabs to run it. May
  // pin memory. Waits for at most a second. Errors: out_of_memory, and those of pinning.
  result<std::byte*> enter(kind of, std::size_t at_once, device::session& session);
  // Unregisters the request.
  void leave(kind of, std::size_t at_once, std::byte* block);
  // Abandons a block or slab that the device may still be using. It is never reused. Call leave() without a block afterwards.
  void lose(kind of, const std::byte* memory);

  // Returns a slab, or null if none is free. In that case, resume() of `waiting` is called when one is. ahead: the stream has not reached
  // the request, which therefore leaves some slabs to requests that block their streams.
  std::byte* take_slab(kind of, slab_waiter& waiting, bool ahead);
  // The slab that a copy on a stream will use, known before the copy is enqueued. It is either a free slab, or one that earlier requests on
  // this stream will have released by then; the release is announced by resume() of the heir. Never a slab that another stream uses.
  struct promise {
    slab_waiter* heir = nullptr;
    std::byte* slab = nullptr;
    bool is_free = false;
  };
  // Promises slabs to all of these heirs, or to none. stream: its identity (0: unknown).
  bool promise_slabs(kind, std::uint64_t stream, std::span<promise> wanted);
  // Called when the stream has reached the request, which then no longer waits behind requests ahead of their streams. Call wake()
  // afterwards.
  void hurry(kind of, slab_waiter& waiting);
  // Returns a slab, before leave(). Call wake() afterwards, without holding any lock that resume() takes.
  void put_slab(kind of, std::byte* slab);
  void wake(kind of);
  // Removes a waiter.
  void forget(kind of, const slab_waiter& waiting);

 private:
  // The sizes for a kind. 16 MiB keep a link busy with slabs that are being filled, waiting for their turn, and being copied. For small
  // slabs, the latency of each step outweighs the time for its bytes.
  struct proportions {
    std::size_t slab_bytes;
    std::size_t block_bytes;
    std::size_t most_slabs;
  };
  static constexpr std::array<proportions, 3> share_of{
      {{staging::small_slab_bytes, 2048, 64}, {std::size_t{1} << 20, 8192, 24}, {std::size_t{4} << 20, 32768, 16}}};
  static constexpr std::size_t most_slabs(kind of) noexcept { return share_of[static_cast<std::size_t>(of)].most_slabs; }
  static constexpr std::size_t blocks_per_slab(kind of) noexcept { return staging::small_slab_bytes / block_bytes(of); }
  static constexpr unsigned most_waits = 1000;
  static constexpr std::size_t most_reserve = 2;

  using waiters = intrusive_list<slab_waiter, &slab_waiter::next_waiting_>;
  // Tracks a promised slab until it is free: the copies on one stream that use it one after another.
  struct tenancy {
    std::uint64_t stream = 0;     // 0: no more copies may follow
    slab_waiter* last = nullptr;  // the last of these copies
    std::uint64_t promised = 0;   // when it was last promised, as an increasing number
    waiters heirs;
  };
  struct share {
    std::size_t users = 0;
    std::size_t at_once = 0;           // the number of slabs that all users together need at a time
    std::vector<staging::slab> slabs;  // all slabs from the pool that hold data
    std::vector<std::byte*> free_slabs;
    std::vector<staging::slab> block_slabs;  // slabs cut into blocks
    std::vector<std::byte*> free_blocks;
    std::vector<tenancy> tenancies;  // one per slab
    std::uint64_t promises = 0;
    std::uint64_t poor_stream = 0;  // a stream with fewer than its share; 0: none known
    waiters heirs;                  // their slabs have become free
    waiters waiting;
    waiters waiting_ahead;
    // The number of slabs that requests ahead of their streams must leave to others: at least one, because otherwise none could continue.
    [[nodiscard]] std::size_t reserve() const noexcept { return std::clamp<std::size_t>(slabs.size() / 4, 1, most_reserve); }
    // The number of slabs that the users can keep busy.
    [[nodiscard]] std::size_t wanted() const noexcept { return std::max(2 * users, at_once + most_reserve); }
    [[nodiscard]] waiters* to_wake() noexcept;  // the queue whose first waiter gets a slab; null: none
    [[nodiscard]] slab_waiter* next_to_wake(std::byte*& slab) noexcept;
    [[nodiscard]] tenancy* tenancy_of(const std::byte* slab) noexcept;
    // Returns `needed` tenancies, oldest first. Returns fewer if there are not that many.
    [[nodiscard]] std::vector<tenancy*> to_inherit(std::uint64_t stream, std::size_t needed);
    void put(std::byte* slab);
  };
  share& of(kind which) noexcept { return shares_[static_cast<std::size_t>(which)]; }
  result<std::byte*> block_for(kind which, device::session& session);
  status slabs_for(kind which, device::session& session);
  result<staging::slab> take_from_pool(std::size_t bytes, device::session& session, bool wait);

  staging::slab_pool& pool_;
  std::mutex lock_;  // guards the shares; never held during a call into the device
  std::array<share, share_of.size()> shares_;
};

}  // namespace penstock::core
