// Pinned staging memory, divided into slabs of a few sizes. The pool pins one chunk at a time, when it is needed, within a budget shared by
// all pools of an engine. It keeps the chunk until trim(). There is one pool per kind of driver. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "sys/kernel.hpp"

namespace penstock::staging {

class slab_pool;

// Pins memory on another thread. ask: for one slab of at least so many bytes. Does not block.
class slab_pinner {
 public:
  virtual void ask(slab_pool& pool, std::size_t bytes, device::session& session) = 0;

 protected:
  ~slab_pinner() = default;
};

// The slab sizes, and the chunks from which they are cut. Chunks are small because a program's first request waits until the first chunk is
// pinned (0.2 ms for 1 MiB).
struct slab_class {
  std::size_t slab_bytes;
  std::size_t chunk_bytes;
};
inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;
inline constexpr std::array<slab_class, 4> slab_classes{
    {{256 * kib, 4 * mib}, {1 * mib, 8 * mib}, {4 * mib, 16 * mib}, {8 * mib, 32 * mib}}};
inline constexpr std::size_t small_slab_bytes = slab_classes.front().slab_bytes;
inline constexpr std::size_t large_slab_bytes = slab_classes.back().slab_bytes;
// With a smaller budget, a pool cannot serve every size.
inline constexpr std::size_t least_budget_bytes = slab_classes.front().chunk_bytes + slab_classes.back().chunk_bytes;

// The kinds of users, which have separate shares of the budget:
// - disk: disk lanes, so that a burst of cached reads does not leave the disk idle.
// - keeper: stream-ordered requests, which may keep slabs for long; a quarter of the budget.
// - ahead: data that may be requested next; an eighth. No caller waits for such a slab. None is handed out while other users need slabs,
//   and these users may ask for it back.
// - far: slabs that remote sources fill, which may never answer; a half, of which one source may use half.
// - background: data that no caller waits for; an eighth, so that other users always find slabs.
enum class slab_user : std::uint8_t { cpu, disk, keeper, ahead, far, background };
inline constexpr std::size_t slab_users = 6;
constexpr std::size_t share_ahead(std::size_t budget_bytes) { return budget_bytes / 8; }
constexpr std::size_t share_far(std::size_t budget_bytes) { return budget_bytes / 2; }
constexpr std::size_t share_background(std::size_t budget_bytes) { return budget_bytes / 8; }

struct slab {
  std::byte* data = nullptr;  // aligned to 256 KiB
  std::size_t size = 0;
  std::uint32_t chunk = 0;  // the argument of slab_pool::chunk
  slab_user user = slab_user::cpu;
  explicit operator bool() const noexcept { return data != nullptr; }
};

struct pinned_budget {
  explicit pinned_budget(std::size_t limit) : limit_bytes(limit) {}
  const std::size_t limit_bytes;
  std::atomic<std::size_t> used_bytes{0};
  std::atomic<std::size_t> peak_bytes{0};
  [[nodiscard]] bool reserve(std::size_t bytes) noexcept;
  void release(std::size_t bytes) noexcept { used_bytes.fetch_sub(bytes); }
};

// Receives the periods in which users waited for slabs because the budget was exhausted. Called on any thread, with times from
// std::chrono::steady_clock.
class slab_waits {
 public:
  virtual void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept = 0;

 protected:
  ~slab_waits() = default;
};

class slab_pool {
 public:
  static constexpr std::size_t max_chunks = 512;
  // Limits for grow_slowly().
  static constexpr std::size_t returns_between_chunks = 2048;
  static constexpr std::chrono::milliseconds quickly{2};
  static constexpr unsigned most_pinning = 2;  // threads that pin memory at the same time, if a slab_pinner asks them

  // most_for_cpu, most_for_disk: the maximum number of bytes that such users may have before further ones wait. Slabs of the smallest size
  // count only for far and background users.
  slab_pool(sys::kernel& kernel, pinned_budget& budget, std::size_t most_for_cpu, std::size_t most_for_disk);
  slab_pool(const slab_pool&) = delete;
  slab_pool& operator=(const slab_pool&) = delete;
  ~slab_pool();  // every slab must have been returned

  // Returns a slab of at least `bytes` (at most large_slab_bytes), or an empty one if none is free now. Returns an error if no slab exists
  // and the first chunk cannot be pinned. session pins a new chunk for all contexts of its driver. If a CPU or disk user is the first to
  // need a size, or calls while another thread is pinning a chunk, it gets a larger free slab, for up to half of its share.
  // elsewhere: pins a new chunk if such users have slabs and the last attempt did not fail. Otherwise the calling thread pins it.
  result<slab> try_take(std::size_t bytes, device::session& session, slab_user user, slab_pinner* elsewhere = nullptr);
  // Pins a chunk with slabs of at least so many bytes, unless there are some. It is small if there are few, so that the first slabs are
  // available early. Blocks. For a slab_pinner.
  void pin_more(std::size_t bytes, device::session& session);
  // Raises the limits of CPU and disk users by these amounts, for another set of lanes that must not wait for the slabs of the first.
  void widen(std::size_t for_cpu, std::size_t for_disk) noexcept;
  // Once CPU users have this many bytes per link, pins more only occasionally while their slabs are returned quickly. Call it before the
  // first link is added.
  void grow_slowly(std::size_t bytes_of_link) noexcept { eager_bytes_ = eager_bytes_of_link_ = bytes_of_link; }
  // Counts a link that is fed from this pool. Each link calls it once.
  void add_link() noexcept;
  // Sets the receiver of waits, which must outlive the pool. share_is_cut: the budget gives CPU users less than they could use. Call it
  // before the first try_take().
  void tell_of_waits(slab_waits& to, bool share_is_cut) noexcept {
    told_ = &to;
    share_is_cut_ = share_is_cut;
  }
  // Sets a callback. ask(context) runs when a user gets no slab because no more can be pinned while users of kind `ahead` have some; those
  // should return theirs. Runs on any thread that takes slabs, without the lock. Call it before the first try_take().
  void ask_back(void (*ask)(void*), void* context) noexcept {
    ask_ = ask;
    ask_context_ = context;
  }
  // Returns true if a user did not get a slab for that reason in the last 100 ms.
  [[nodiscard]] bool is_wanted() const noexcept;
  // Returns why the last attempt to pin more failed, or ok if it succeeded.
  [[nodiscard]] status last_refusal() const {
    const std::lock_guard guard(lock_);
    return refusal_;
  }
  // Call when no slab was available. Returns the time if the budget is the reason, otherwise 0.
  [[nodiscard]] std::int64_t begin_wait(slab_user user) const noexcept;
  // Call when a slab has been obtained or is no longer needed. began_ns: from begin_wait(); set to 0.
  void end_wait(std::int64_t& began_ns) noexcept;
  void give_back(slab used);
  // Call instead of give_back() if the kernel or the device may still write to the slab. The slab is lost permanently, along with the
  // mapping of its chunk, which no longer counts against the budget.
  void abandon(slab lost);
  // Unpins and unmaps the chunks that have no slab in use, and returns the number of bytes freed. Blocks while the driver unpins. If the
  // driver fails to unpin a chunk, it stays in use.
  std::size_t trim();
  // Blocks until a slab is returned or the timeout expires.
  void wait_for_return(std::chrono::microseconds timeout);

  // Returns the memory of a chunk, to register with a ring. generation() counts the chunks that have had this number. Both are constant
  // while one of the chunk's slabs is in use.
  [[nodiscard]] std::span<std::byte> chunk(std::uint32_t index) const noexcept {
    return {chunks_[index].base.load(std::memory_order_acquire), chunks_[index].length};
  }
  [[nodiscard]] std::uint32_t generation(std::uint32_t index) const noexcept {
    return chunks_[index].generation.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::size_t slabs_out() const;

 private:
  struct chunk_state {
    std::atomic<std::byte*> base{nullptr};  // null: the number is free
    std::atomic<std::uint32_t> generation{0};
    std::size_t length = 0;
    std::size_t of_class = 0;
    device::session* pinned_by = nullptr;  // null: abandoned, never unmapped
  };

  static constexpr std::size_t class_count = slab_classes.size();
  static std::size_t class_of(std::size_t bytes) noexcept;

  // used_up: set if there is no slab because no more can be pinned, rather than because the share is exhausted.
  result<slab> take_or_grow(std::size_t wanted_class, device::session& session, slab_user user, slab_pinner* elsewhere, bool& used_up);
  void note_wanted() noexcept;
  // Call with the lock held.
  [[nodiscard]] std::size_t all_out() const noexcept;
  slab pop(std::size_t wanted_class, slab_user user);
  slab take_instead(std::size_t wanted_class, slab_user user);
  slab take_from(std::size_t of_class, slab_user user);
  [[nodiscard]] bool at_limit(std::size_t of_class, slab_user user) const noexcept;
  [[nodiscard]] bool may_grow(std::size_t of_class, slab_user user) const noexcept;
  void count(const slab& used, bool taken) noexcept;
  // Returns a number that no chunk has, or max_chunks if all are taken.
  [[nodiscard]] std::uint32_t free_number() const noexcept;
  // Returns true if each thread that pins can still get a number.
  [[nodiscard]] bool has_numbers() const noexcept { return chunk_count_ + most_pinning <= max_chunks; }
  [[nodiscard]] bool is_idle(std::uint32_t index) const noexcept;
  void add_slabs(std::uint32_t index) noexcept;

  [[nodiscard]] std::size_t affordable(std::size_t wanted) const noexcept;
  status grow(std::size_t of_class, device::session& session, bool little);
  [[nodiscard]] std::size_t little_chunk(std::size_t of_class) const noexcept;
  std::size_t trim(std::uint32_t index);

  sys::kernel& kernel_;
  pinned_budget& budget_;
  slab_waits* told_ = nullptr;
  bool share_is_cut_ = false;
  void (*ask_)(void*) = nullptr;
  void* ask_context_ = nullptr;
  std::atomic<std::int64_t> wanted_ns_{0};  // when a user last failed to get a slab; 0: never
  std::size_t eager_bytes_of_link_ = 0;
  mutable std::mutex lock_;  // guards the members below, except the chunks already added
  std::size_t eager_bytes_ = ~std::size_t{0};
  std::size_t links_ = 0;
  std::condition_variable returned_;
  std::array<std::size_t, slab_users> most_bytes_;   // by slab_user
  std::array<std::vector<slab>, class_count> free_;  // capacity for all slabs, so that returning one never allocates
  std::array<std::size_t, class_count> slabs_of_class_{};
  std::array<std::size_t, slab_users> bytes_out_{};  // by slab_user; without the smallest size, except for far and background
  std::array<std::size_t, slab_users> slabs_out_{};  // by slab_user
  std::size_t returns_ = 0;                          // since the last chunk was added; like the next member, without the smallest size
  std::int64_t returned_ns_ = 0;                     // when a slab was last returned or a chunk added
  std::size_t waiting_ = 0;
  unsigned growing_ = 0;                  // threads that pin a chunk
  status refusal_;                        // of the last attempt to pin more
  unsigned trimming_ = 0;                 // chunks that will be returned either as slabs or as budget
  std::uint64_t trims_ = 0;               // finished trims of chunks
  std::atomic<bool> has_largest_{false};  // a chunk of the largest size exists
  std::vector<chunk_state> chunks_;
  std::size_t chunk_count_ = 0;
};

}  // namespace penstock::staging
