// Read-ahead into pinned slabs, for blocking reads that each begin where the last one ended. Lanes (worker threads) fill slabs in file
// order from the page cache between calls; the caller finds its bytes in pinned memory and only copies them. Bytes that are not cached or
// cannot be read are left to the caller, which reads them as if there were no read-ahead; only that read reports errors.
//
// For sources whose bytes do not change. Thread-safe: serves one call at a time and refuses others. Owns no thread. Its slabs come from the
// share of slab_user::ahead; the pool can reclaim them at any time, except while they are copied from.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/spin_lock.hpp"
#include "penstock/options.hpp"
#include "source/source.hpp"
#include "staging/lanes.hpp"
#include "staging/lent_slab.hpp"
#include "staging/link.hpp"
#include "staging/work.hpp"

namespace penstock::source {

class read_ahead {
 public:
  // Lanes fill a slab in pieces, so that the first bytes are ready soon. A call within one slab needs one copy.
  static constexpr std::uint64_t slab_bytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  static constexpr std::size_t most_slabs = 16;
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;  // longer calls take their usual path
  // After this many calls in a row elsewhere, the window is dropped.
  static constexpr unsigned most_strangers = 8;

  // slabs: the most that it may hold, up to most_slabs; with fewer than two it never serves. size: of the source. from, by and the pools
  // outlive it.
  read_ahead(source& from, staging::lanes& by, std::uint64_t size, std::size_t slabs) noexcept;
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;
  ~read_ahead();  // stop() must have been called

  // A call that reads into a device.
  struct call {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    staging::link* via = nullptr;
  };
  // Returns true if the whole call, up to the end of the source, is in slabs or soon will be. The caller then uses part() and ends with
  // end(). Otherwise it takes its usual path and calls passed(). Does not block.
  [[nodiscard]] bool begin(const call& what) noexcept;
  // Contiguous bytes that begin at offset. Waits for the first of them; the calling thread may read them itself. No bytes: not available
  // here, or, with errc::timed_out, the deadline has passed.
  struct bytes {
    const std::byte* data = nullptr;
    std::uint64_t length = 0;
    status problem;
  };
  [[nodiscard]] bytes part(std::uint64_t offset, std::uint64_t length, deadline_clock::time_point deadline);
  // Ends a served call; nothing reads its slabs any longer. served: all of its bytes came from here.
  void end(const call& what, bool served) noexcept;
  // Reports a call that took its usual path. May begin to read ahead from its end.
  void passed(const call& what) noexcept;

  // Returns true if passed() for this call may begin to read ahead, judging by the order of calls.
  [[nodiscard]] bool may_begin(const call& what) noexcept;
  // Releases all slabs as soon as nothing uses them. Sequential readers get new ones later.
  void give_back() noexcept;
  // As give_back(), if no call was served since the last call of this function. Returns true if slabs are still held.
  [[nodiscard]] bool give_back_unless_used() noexcept;
  // Stops for good; waits for lanes that fill slabs. No call may follow.
  void stop() noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }  // of the source
  // room(): the most bytes that it may hold. problem(): why it no longer reads ahead; ok if it does.
  [[nodiscard]] std::uint64_t room() const noexcept { return most_ * slab_bytes; }
  [[nodiscard]] status problem() const;
  // True if none of its work is queued or under way.
  [[nodiscard]] bool idle() const noexcept { return under_way_.load(std::memory_order_acquire) == 0; }
  // Bytes that lanes have read ahead.
  [[nodiscard]] std::uint64_t filled_bytes() const noexcept { return filled_bytes_.load(std::memory_order_relaxed); }

 private:
  struct entry;
  // A part of a slab, filled by one lane.
  struct piece final : staging::work {
    enum class state : std::uint8_t { idle, queued, filling, full, missing };
    bool run() override;
    read_ahead* owner = nullptr;
    entry* of = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::atomic<state> now{state::idle};
  };
  // A slab with bytes from..end of the source; the byte at an offset lies offset % slab_bytes after the slab's start.
  struct entry {
    staging::lent_slab slab;
    std::uint64_t from = 0;
    std::uint64_t end = 0;
    std::array<piece, slab_bytes / piece_bytes> pieces;
    unsigned holders = 0;  // the window, and pieces not yet ended; 0: free
    std::atomic<bool> dropped{false};
  };
  // A sequence of calls; each of several threads may have one.
  struct cursor {
    std::uint64_t end = 0;
    unsigned run = 0;         // calls in a row that began at end
    std::uint64_t named = 0;  // number of its last call
  };
  struct taking_work final : staging::work {
    bool run() override;
    read_ahead* owner = nullptr;
  };
  struct rack {
    std::array<staging::lent_slab, most_slabs> slabs;
    std::size_t count = 0;
    void add(staging::lent_slab&& slab) noexcept { slabs[count++] = std::move(slab); }
    [[nodiscard]] staging::lent_slab take() noexcept { return std::move(slabs[--count]); }
  };

  [[nodiscard]] static std::size_t needed(std::uint64_t length) noexcept { return length / slab_bytes + 2; }
  [[nodiscard]] std::uint64_t end_of(const call& what) const noexcept;

  // --- lock_ is held; queued: work to push after it is released
  cursor& note(const call& what) noexcept;
  [[nodiscard]] bool covers(const call& what) const noexcept;
  void start(std::uint64_t at, staging::work_chain& queued) noexcept;
  void arm(entry& next, staging::work_chain& queued) noexcept;
  void add_spares(staging::work_chain& queued) noexcept;
  [[nodiscard]] bool wants_slabs() const noexcept;
  void take_more(staging::work_chain& queued) noexcept;
  void move_to(std::uint64_t at, staging::work_chain& queued, rack& back) noexcept;
  void drop(rack& back) noexcept;
  void release(entry& gone, rack& back) noexcept;
  void hold_off() noexcept;

  // --- without lock_
  void take_slabs() noexcept;
  void fill(piece& item) noexcept;
  [[nodiscard]] bool fetch(const piece& item) noexcept;
  [[nodiscard]] entry* entry_at(std::uint64_t offset) noexcept;
  [[nodiscard]] bool await(piece& item, deadline_clock::time_point deadline, status& problem);
  [[nodiscard]] entry& nth(std::size_t index) noexcept { return *order_[(head_ + index) % most_slabs]; }

  source& from_;
  staging::lanes& lanes_;
  const std::uint64_t size_;
  const std::size_t most_;
  staging::work_list list_;
  std::atomic<std::uint32_t> under_way_{0};  // work that has not ended; the last member that work touches
  std::atomic<bool> broken_{false};          // a piece of this window is missing
  std::atomic<bool> changed_{false};         // the source changed since it was opened
  std::atomic<std::uint64_t> filled_bytes_{0};
  std::atomic<staging::link*> via_{nullptr};  // the link that its slabs are for; set under lock_, while no slab is out

  mutable spin_lock lock_;  // guards the members below; the window belongs to the served call
  std::array<cursor, 4> cursors_{};
  std::uint64_t calls_ = 0;
  bool serving_ = false;
  bool drop_asked_ = false;  // drop when no call is served
  bool stopped_ = false;
  bool taking_ = false;
  bool refused_ = false;           // the pool has no more slabs for this
  unsigned required_ = 2;          // calls in a row before it begins
  unsigned strangers_ = 0;         // calls elsewhere since the last served one
  std::uint64_t served_ = 0;       // calls
  std::uint64_t served_seen_ = 0;  // served_ at the last check
  std::uint64_t used_bytes_ = 0;   // bytes of this window that were used
  std::size_t allowed_ = 0;        // slab limit, at most most_; grows with use
  std::size_t owned_ = 0;          // slabs held, wherever they are
  rack spares_;                    // empty slabs
  std::array<entry, most_slabs> entries_;
  std::array<entry*, most_slabs> order_{};  // the window: a ring in file order
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::uint64_t next_ = 0;       // where the next call is expected
  std::uint64_t armed_end_ = 0;  // end of the window
  taking_work taking_work_;
};

}  // namespace penstock::source
