// Read-ahead into pinned slabs, for blocking reads that each start where the previous one ended. Between calls, lanes (worker threads) fill
// slabs in file order from the page cache, so the caller only copies from pinned memory. The caller itself reads bytes that are not cached
// or cannot be read, as if there were no read-ahead; only that read reports errors.
//
// For sources whose bytes do not change. Thread-safe: serves one call at a time and rejects others. Owns no thread. Its slabs come from the
// share of slab_user::ahead; the pool can reclaim them at any time, except while a copy from them is in progress.
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
  // Lanes fill a slab in pieces, so that the first bytes are ready early. A call within one slab needs one copy.
  static constexpr std::uint64_t slab_bytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  static constexpr std::size_t most_slabs = 16;
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;  // longer calls use their normal path
  // The window is dropped after this many consecutive calls at other offsets.
  static constexpr unsigned most_strangers = 8;

  // slabs: the maximum number of slabs to hold, up to most_slabs; with fewer than two it never serves a call. size: the size of the source.
  // from, by and the pools must outlive this object.
  read_ahead(source& from, staging::lanes& by, std::uint64_t size, std::size_t slabs) noexcept;
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;
  ~read_ahead();  // stop() must have been called first

  // A call that reads into device memory.
  struct call {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    staging::link* via = nullptr;
  };
  // Returns true if all bytes of the call, up to the end of the source, are in slabs or soon will be. The caller then calls part()
  // repeatedly and finally end(). Otherwise it uses its normal path and calls passed(). Does not block.
  [[nodiscard]] bool begin(const call& what) noexcept;
  // Contiguous bytes that start at offset. part() waits for the first of them; the calling thread may read them itself. No bytes: they are
  // not available here, or, with errc::timed_out, the deadline has passed.
  struct bytes {
    const std::byte* data = nullptr;
    std::uint64_t length = 0;
    status problem;
  };
  [[nodiscard]] bytes part(std::uint64_t offset, std::uint64_t length, deadline_clock::time_point deadline);
  // Ends a served call; the caller no longer reads from the slabs. served: all of the call's bytes came from here.
  void end(const call& what, bool served) noexcept;
  // Reports a call that used its normal path. May start reading ahead from where that call ended.
  void passed(const call& what) noexcept;

  // Returns true if passed() may start reading ahead after this call, judging by the order of calls.
  [[nodiscard]] bool may_begin(const call& what) noexcept;
  // Releases all slabs as soon as they are not in use. Sequential readers get new ones later.
  void give_back() noexcept;
  // Like give_back(), but only if no read was served since this function was last called. Returns true if slabs are still held.
  [[nodiscard]] bool give_back_unless_used() noexcept;
  // Stops permanently and waits for lanes that are filling slabs. No calls may follow.
  void stop() noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }  // the source's size
  // room(): the maximum number of bytes that it may hold. problem(): why it no longer reads ahead; ok if it does.
  [[nodiscard]] std::uint64_t room() const noexcept { return most_ * slab_bytes; }
  [[nodiscard]] status problem() const;
  // Returns true if none of its work is queued or running.
  [[nodiscard]] bool idle() const noexcept { return under_way_.load(std::memory_order_acquire) == 0; }
  // The number of bytes that lanes have read ahead.
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
  // A slab with the source's bytes from..end. The byte at an offset is offset % slab_bytes after the start of the slab.
  struct entry {
    staging::lent_slab slab;
    std::uint64_t from = 0;
    std::uint64_t end = 0;
    std::array<piece, slab_bytes / piece_bytes> pieces;
    unsigned holders = 0;  // the window, and pieces that have not finished; 0: free
    std::atomic<bool> dropped{false};
  };
  // A sequence of calls. Each of several threads may have one.
  struct cursor {
    std::uint64_t end = 0;
    unsigned run = 0;         // consecutive calls that started at end
    std::uint64_t named = 0;  // number of the last call in the sequence
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

  // --- Called with lock_ held. queued: work to push after the lock is released
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

  // --- Called without lock_
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
  std::atomic<std::uint32_t> under_way_{0};  // number of unfinished work items; the last member that work accesses
  std::atomic<bool> broken_{false};          // a piece of this window is missing
  std::atomic<bool> changed_{false};         // the source has changed since it was opened
  std::atomic<std::uint64_t> filled_bytes_{0};
  std::atomic<staging::link*> via_{nullptr};  // the link that its slabs are for; set under lock_, while no slabs are held

  mutable spin_lock lock_;  // guards the members below; the call being served owns the window
  std::array<cursor, 4> cursors_{};
  std::uint64_t calls_ = 0;
  bool serving_ = false;
  bool drop_asked_ = false;  // drop the window once no call is being served
  bool stopped_ = false;
  bool taking_ = false;
  bool refused_ = false;           // the pool has no more slabs for read-ahead
  unsigned required_ = 2;          // consecutive calls before read-ahead starts
  unsigned strangers_ = 0;         // calls at other offsets since the last served call
  std::uint64_t served_ = 0;       // calls
  std::uint64_t served_seen_ = 0;  // served_ at the last check
  std::uint64_t used_bytes_ = 0;   // bytes in this window that were used
  std::size_t allowed_ = 0;        // slab limit, at most most_; grows with use
  std::size_t owned_ = 0;          // slabs held, wherever they are now
  rack spares_;                    // empty slabs
  std::array<entry, most_slabs> entries_;
  std::array<entry*, most_slabs> order_{};  // the window, as a ring buffer in file order
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::uint64_t next_ = 0;       // the offset at which the next call is expected
  std::uint64_t armed_end_ = 0;  // end of the window
  taking_work taking_work_;
};

}  // namespace penstock::source
