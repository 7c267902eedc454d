// Pinned memory of stream-ordered requests. What a request needs is set aside while it is queued, since nothing that runs while it holds a
// stream may call the device: the driver may have locked itself up until that stream goes on (in cuMemFree, or to load a kernel).
// Slabs and blocks come from a pool and go back when no such request is left. Thread-safe.
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

// Who waits for a slab.
class slab_waiter {
 public:
  virtual void retain() noexcept = 0;
  virtual void release() noexcept = 0;
  // This one is for it.
  virtual void resume(std::byte* slab) = 0;
  // All that its stream has to do with the slab has been put onto it.
  [[nodiscard]] virtual bool is_on_stream() const noexcept { return false; }

 protected:
  ~slab_waiter() = default;

 private:
  friend class stream_memory;
  slab_waiter* next_waiting_ = nullptr;
  std::byte* promised_ = nullptr;  // that has come free for it
};

class stream_memory {
 public:
  // Of a request of one wave, small or not, or of one of any length.
  enum class kind : std::uint8_t { small, medium, large };
  static constexpr std::size_t slab_bytes(kind of) noexcept { return share_of[static_cast<std::size_t>(of)].slab_bytes; }
  // Of the block that a request has to itself.
  static constexpr std::size_t block_bytes(kind of) noexcept { return share_of[static_cast<std::size_t>(of)].block_bytes; }

  explicit stream_memory(staging::slab_pool& pool) : pool_(pool) {}
  stream_memory(const stream_memory&) = delete;
  stream_memory& operator=(const stream_memory&) = delete;

  // Begins the use by a request of so many slabs at once: a block for it, and slabs enough that it can run. May pin memory. Waits a second
  // at most. Errors: out_of_memory, and those of pinning.
  result<std::byte*> enter(kind of, std::size_t at_once, device::session& session);
  // Ends it.
  void leave(kind of, std::size_t at_once, std::byte* block);
  // A block or slab that the device may still use is never given back. leave() without a block follows.
  void lose(kind of, const std::byte* memory);

  // A slab; null when none is free: then resume() of `waiting` is called when one is. ahead: for a request that its stream has not
  // reached, which leaves some to those that hold up theirs.
  std::byte* take_slab(kind of, slab_waiter& waiting, bool ahead);
  // The slab that a copy on a stream will use, known before that is put onto it: one that is free; or one that requests before it on this
  // stream will have left by then, and that resume() of the heir tells of. No slab of another stream is waited for.
  struct promise {
    slab_waiter* heir = nullptr;
    std::byte* slab = nullptr;
    bool is_free = false;
  };
  // For all of these, whose heirs are given, or for none. stream: its identity (0: not known).
  bool promise_slabs(kind, std::uint64_t stream, std::span<promise> wanted);
  // Its stream has reached it: it waits no longer behind those that are ahead. Then wake() is to be called.
  void hurry(kind of, slab_waiter& waiting);
  // Gives one back, before leave(); then wake() is to be called, without a lock that resume() takes.
  void put_slab(kind of, std::byte* slab);
  void wake(kind of);
  // Waits no more.
  void forget(kind of, const slab_waiter& waiting);

 private:
  // Of a kind. A link is kept busy by 16 MiB that are filled, wait for their turn and are copied; of small ones all take longer than their
  // bytes.
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
  // Of a slab that was promised, until it is free: whose copies on one stream use it, one after the other.
  struct tenancy {
    std::uint64_t stream = 0;     // 0: none are to follow
    slab_waiter* last = nullptr;  // of those
    std::uint64_t promised = 0;   // when, the last time: a number that grows
    waiters heirs;
  };
  struct share {
    std::size_t users = 0;
    std::size_t at_once = 0;           // slabs, of all of them
    std::vector<staging::slab> slabs;  // all that were taken from the pool to carry bytes
    std::vector<std::byte*> free_slabs;
    std::vector<staging::slab> block_slabs;  // and those that were cut into blocks
    std::vector<std::byte*> free_blocks;
    std::vector<tenancy> tenancies;  // of each of the slabs
    std::uint64_t promises = 0;
    std::uint64_t poor_stream = 0;  // that has less than its share; 0: none is known
    waiters heirs;                  // whose slabs have come free
    waiters waiting;
    waiters waiting_ahead;
    // That those ahead leave: one at least, without which nobody could go on.
    [[nodiscard]] std::size_t reserve() const noexcept { return std::clamp<std::size_t>(slabs.size() / 4, 1, most_reserve); }
    // That its users have work for.
    [[nodiscard]] std::size_t wanted() const noexcept { return std::max(2 * users, at_once + most_reserve); }
    [[nodiscard]] waiters* to_wake() noexcept;  // of which the first gets a slab; null: none does
    [[nodiscard]] slab_waiter* next_to_wake(std::byte*& slab) noexcept;
    [[nodiscard]] tenancy* tenancy_of(const std::byte* slab) noexcept;
    // Oldest first, of which there are to be so many.
    [[nodiscard]] std::vector<tenancy*> to_inherit(std::uint64_t stream, std::size_t needed);
    void put(std::byte* slab);
  };
  share& of(kind which) noexcept { return shares_[static_cast<std::size_t>(which)]; }
  result<std::byte*> block_for(kind which, device::session& session);
  status slabs_for(kind which, device::session& session);
  result<staging::slab> take_from_pool(std::size_t bytes, device::session& session, bool wait);

  staging::slab_pool& pool_;
  std::mutex lock_;  // guards the shares; never held across a call of the device
  std::array<share, share_of.size()> shares_;
};

}  // namespace penstock::core
