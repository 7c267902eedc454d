// What is next in a source, in slabs before anybody asks for it: for blocking reads that each begin where the last one ended. Lanes fill
// the slabs in file order from the page cache while their reader is elsewhere; he finds the bytes in pinned memory, and has only to copy
// them. What is not in the page cache, or cannot be read, is left to the reader, who then reads it as if there were no read-ahead, and
// hears of errors from that read only.
//
// For sources whose bytes do not change. Thread-safe; one call at a time is served, and others are told that they are not. It owns no
// thread. What it holds is out of the share of slab_user::ahead, and can be taken back at any time but while it is copied from.
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
  // Of each slab; the lanes fill it in pieces, so that the first bytes are soon there. A call that lies in one slab is one copy.
  static constexpr std::uint64_t slab_bytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  static constexpr std::size_t most_slabs = 16;
  static constexpr std::uint64_t most_call_bytes = std::uint64_t{16} << 20;  // longer calls go their usual way
  // Calls that go elsewhere, one after the other, after which nobody is expected to go on.
  static constexpr unsigned most_strangers = 8;

  // slabs: the most that it may hold, up to most_slabs; with less than two it never serves. size: of the source. All three outlive it.
  read_ahead(source& from, staging::lanes& by, std::uint64_t size, std::size_t slabs) noexcept;
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;
  ~read_ahead();  // after stop()

  // A call that reads into a device.
  struct call {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    staging::link* via = nullptr;
  };
  // Whether all of it, up to the end of the source, is in slabs or soon will be: then the caller is served by part(), and ends that with
  // end(). Else it goes its usual way, and says so with passed(). Does not block.
  [[nodiscard]] bool begin(const call& what) noexcept;
  // Bytes from offset on that lie together. Waits for the first of them, for which the calling thread may read them itself. No bytes: they
  // are not to be had here; or, with errc::timed_out, the deadline has passed.
  struct bytes {
    const std::byte* data = nullptr;
    std::uint64_t length = 0;
    status problem;
  };
  [[nodiscard]] bytes part(std::uint64_t offset, std::uint64_t length, deadline_clock::time_point deadline);
  // The call that is served has ended, and nothing reads its slabs any more. served: it had all its bytes from here.
  void end(const call& what, bool served) noexcept;
  // A call has gone its usual way. May begin to read ahead from its end on.
  void passed(const call& what) noexcept;

  // Whether the next passed() of a call may begin to read ahead, as far as the order of calls tells.
  [[nodiscard]] bool may_begin(const call& what) noexcept;
  // Lets go of all slabs as soon as they are quiet. Whoever goes on reading in order gets others.
  void give_back() noexcept;
  // The same, where no call was served since the last of these questions. True: something is held still.
  [[nodiscard]] bool give_back_unless_used() noexcept;
  // For good: waits for what lanes are filling. No call may come any more.
  void stop() noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }  // of the source
  // Bytes that it may hold; why it reads nothing ahead any more, ok where it does.
  [[nodiscard]] std::uint64_t room() const noexcept { return most_ * slab_bytes; }
  [[nodiscard]] status problem() const;
  // Nothing of it is queued or under way.
  [[nodiscard]] bool idle() const noexcept { return under_way_.load(std::memory_order_acquire) == 0; }
  // Bytes that lanes have read for it.
  [[nodiscard]] std::uint64_t filled_bytes() const noexcept { return filled_bytes_.load(std::memory_order_relaxed); }

 private:
  struct entry;
  // A part of a slab, which one lane fills.
  struct piece final : staging::work {
    enum class state : std::uint8_t { idle, queued, filling, full, missing };
    bool run() override;
    read_ahead* owner = nullptr;
    entry* of = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::atomic<state> now{state::idle};
  };
  // A slab with the bytes from..end of the source: that at an offset lies offset % slab_bytes behind its start.
  struct entry {
    staging::lent_slab slab;
    std::uint64_t from = 0;
    std::uint64_t end = 0;
    std::array<piece, slab_bytes / piece_bytes> pieces;
    unsigned holders = 0;  // the window, and pieces that have not ended; 0: free
    std::atomic<bool> dropped{false};
  };
  // How calls go on: each of several threads may have one.
  struct cursor {
    std::uint64_t end = 0;
    unsigned run = 0;         // calls in a row that began where this was
    std::uint64_t named = 0;  // when it was last
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

  // --- with the lock; queued: works to be pushed once it is free
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

  // --- without it
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
  std::atomic<std::uint32_t> under_way_{0};  // works that have not ended; the last that any of them touches
  std::atomic<bool> broken_{false};          // a piece of this window is missing
  std::atomic<bool> changed_{false};         // the source, since it was opened
  std::atomic<std::uint64_t> filled_bytes_{0};
  std::atomic<staging::link*> via_{nullptr};  // that its slabs are for; set with the lock, while no slab is out

  mutable spin_lock lock_;  // guards what follows; the window itself belongs to whoever is served
  std::array<cursor, 4> cursors_{};
  std::uint64_t calls_ = 0;
  bool serving_ = false;
  bool drop_asked_ = false;  // once nobody is served
  bool stopped_ = false;
  bool taking_ = false;
  bool refused_ = false;           // the pool has no more for this
  unsigned required_ = 2;          // calls in a row before it begins
  unsigned strangers_ = 0;         // calls since the last that was served
  std::uint64_t served_ = 0;       // calls
  std::uint64_t served_seen_ = 0;  // when it was last asked
  std::uint64_t used_bytes_ = 0;   // of this window
  std::size_t allowed_ = 0;        // slabs, of most_: more while they are used
  std::size_t owned_ = 0;          // slabs, wherever they are
  rack spares_;                    // that hold nothing yet
  std::array<entry, most_slabs> entries_;
  std::array<entry*, most_slabs> order_{};  // the window, a ring in file order
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::uint64_t next_ = 0;       // where the next call is expected
  std::uint64_t armed_end_ = 0;  // of the window
  taking_work taking_work_;
};

}  // namespace penstock::source
