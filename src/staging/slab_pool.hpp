// Pinned staging memory, cut into slabs of a few sizes. Memory is added a chunk at a time, when it is first needed, up to a
// budget that all pools of an engine share, and stays until trim(). One pool for each kind of driver. Thread-safe.
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

// The sizes of slabs, and the chunks that they are cut from. Small chunks, since the first request of a program waits for the first of
// them to be pinned (0.2 ms for 1 MiB).
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
// With less than this a pool cannot serve every size.
inline constexpr std::size_t least_budget_bytes = slab_classes.front().chunk_bytes + slab_classes.back().chunk_bytes;

// Who asks: disk lanes keep a share of their own, so that a burst of cached reads does not leave the disk idle. keeper: for as long as
// requests in the order of a stream are under way, which may be long, so their share is a quarter of the budget. ahead: for what may be
// asked for next; nobody waits for such a slab, and nobody gets one while others want some, who may have it back. Their share is an eighth.
// far: what far sources fill, which may never answer. Their share is a half, of which one source has half. background: for what nobody
// waits for; an eighth, so that others always find some.
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

// Is told of waits for slabs while the budget was used up. Any thread; by the clock of std::chrono::steady_clock.
class slab_waits {
 public:
  virtual void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept = 0;

 protected:
  ~slab_waits() = default;
};

class slab_pool {
 public:
  static constexpr std::size_t max_chunks = 512;
  // Of grow_slowly().
  static constexpr std::size_t returns_between_chunks = 2048;
  static constexpr std::chrono::milliseconds quickly{2};

  // most_for_cpu, most_for_disk: with so many bytes handed out to such users, further ones wait for returns. Slabs of the smallest
  // size are not counted, but of far and background users.
  slab_pool(sys::kernel& kernel, pinned_budget& budget, std::size_t most_for_cpu, std::size_t most_for_disk);
  slab_pool(const slab_pool&) = delete;
  slab_pool& operator=(const slab_pool&) = delete;
  ~slab_pool();  // every slab has been given back

  // A slab of at least bytes (at most large_slab_bytes); an empty one when none is free now. An error when there is none
  // and never will be: the first chunk cannot be had. session pins a new chunk, for all contexts of its driver. A CPU or disk user who
  // would be the first of a size, or comes while a chunk is pinned, gets a larger slab that is free, for up to half of its share.
  result<slab> try_take(std::size_t bytes, device::session& session, slab_user user);
  // Lets so many bytes more be out with cpu and with disk users: for another crew of lanes, which must not wait for what others hold.
  void widen(std::size_t for_cpu, std::size_t for_disk) noexcept;
  // With so many bytes out with CPU users for each link that there is, more is pinned only now and then while their slabs come back
  // quickly. Before the first link is added.
  void grow_slowly(std::size_t bytes_of_link) noexcept { eager_bytes_ = eager_bytes_of_link_ = bytes_of_link; }
  // A link that is fed from here; each calls it once.
  void add_link() noexcept;
  // Where to tell of waits. share_is_cut: what CPU users may have is less than they could use, for want of budget. Before the first
  // try_take(); it outlives the pool.
  void tell_of_waits(slab_waits& to, bool share_is_cut) noexcept {
    told_ = &to;
    share_is_cut_ = share_is_cut;
  }
  // ask(context) is called where somebody goes away without a slab, since no more can be pinned, while users ahead hold some: they should
  // give theirs back. On any thread that takes slabs, without the lock. Before the first try_take().
  void ask_back(void (*ask)(void*), void* context) noexcept {
    ask_ = ask;
    ask_context_ = context;
  }
  // Somebody has gone away so just now.
  [[nodiscard]] bool is_wanted() const noexcept;
  // Why no more could be pinned when that was last tried; ok: it could.
  [[nodiscard]] status last_refusal() const {
    const std::lock_guard guard(lock_);
    return refusal_;
  }
  // A slab was waited for in vain until now: when that began, if it is for want of budget; else 0.
  [[nodiscard]] std::int64_t begin_wait(slab_user user) const noexcept;
  // It has come, or is not waited for any more. began_ns: of begin_wait(); set to 0.
  void end_wait(std::int64_t& began_ns) noexcept;
  void give_back(slab used);
  // Instead of give_back, when the kernel or device may still write to it: the slab is lost for good, and with it the mapping of its chunk,
  // which no longer counts against the budget.
  void abandon(slab lost);
  // Unpins and unmaps the chunks of which no slab is out. Returns their bytes. Blocks while the driver unpins. A chunk that it does not
  // unpin stays in use.
  std::size_t trim();
  // Blocks until a slab is given back, or the time is over.
  void wait_for_return(std::chrono::microseconds timeout);

  // The memory of a chunk, to register with a ring; and which of the chunks that have had this number it is. Both stay while one of its
  // slabs is out.
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
    device::session* pinned_by = nullptr;  // null: abandoned, never to be unmapped
  };

  static constexpr std::size_t class_count = slab_classes.size();
  static std::size_t class_of(std::size_t bytes) noexcept;

  // used_up: whether there is none because no more can be pinned, and not for want of a share.
  result<slab> take_or_grow(std::size_t wanted_class, device::session& session, slab_user user, bool& used_up);
  void note_wanted() noexcept;
  // With the lock held.
  [[nodiscard]] std::size_t all_out() const noexcept;
  slab pop(std::size_t wanted_class, slab_user user);
  slab take_instead(std::size_t wanted_class, slab_user user);
  slab take_from(std::size_t of_class, slab_user user);
  [[nodiscard]] bool at_limit(std::size_t of_class, slab_user user) const noexcept;
  [[nodiscard]] bool may_grow(std::size_t of_class, slab_user user) const noexcept;
  void count(const slab& used, bool taken) noexcept;
  [[nodiscard]] std::uint32_t free_number() const noexcept;  // max_chunks: there is none
  [[nodiscard]] bool is_idle(std::uint32_t index) const noexcept;
  void add_slabs(std::uint32_t index) noexcept;

  [[nodiscard]] std::size_t affordable(std::size_t wanted) const noexcept;
  status grow(std::size_t of_class, device::session& session);
  std::size_t trim(std::uint32_t index);

  sys::kernel& kernel_;
  pinned_budget& budget_;
  slab_waits* told_ = nullptr;
  bool share_is_cut_ = false;
  void (*ask_)(void*) = nullptr;
  void* ask_context_ = nullptr;
  std::atomic<std::int64_t> wanted_ns_{0};  // when somebody went away without one; 0: nobody has
  std::size_t eager_bytes_of_link_ = 0;
  mutable std::mutex lock_;  // guards what follows, but for the chunks that were added
  std::size_t eager_bytes_ = ~std::size_t{0};
  std::size_t links_ = 0;
  std::condition_variable returned_;
  std::array<std::size_t, slab_users> most_bytes_;   // by slab_user
  std::array<std::vector<slab>, class_count> free_;  // with room for all that there are: giving back allocates nothing
  std::array<std::size_t, class_count> slabs_of_class_{};
  std::array<std::size_t, slab_users> bytes_out_{};  // by slab_user, without the smallest size, but for far and background
  std::array<std::size_t, slab_users> slabs_out_{};  // by slab_user
  std::size_t returns_ = 0;                          // since the last chunk was added; like the next, of all but the smallest size
  std::int64_t returned_ns_ = 0;                     // when one came back, or a chunk was added
  std::size_t waiting_ = 0;
  bool growing_ = false;
  status refusal_;                        // of the last try to pin more
  unsigned trimming_ = 0;                 // chunks that come back either as slabs or as budget
  std::uint64_t trims_ = 0;               // of chunks, ended
  std::atomic<bool> has_largest_{false};  // a chunk of the largest size exists
  std::vector<chunk_state> chunks_;
  std::size_t chunk_count_ = 0;
};

}  // namespace penstock::staging
