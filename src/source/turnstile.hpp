// A queue for work items that start fills of a far source. A lane runs them, one at a time and alternating between requests, as long as the
// source accepts more concurrent fills and has memory for them. Thread-safe. Shared by the file, its fills and the lane.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/spin_lock.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pool.hpp"
#include "staging/work.hpp"

namespace penstock::source {

class turnstile final : public staging::work, public std::enable_shared_from_this<turnstile> {
 public:
  // The part of an engine's staging memory that all far sources share. Each source may use half of what the others leave, so one that does
  // not respond never holds all of it.
  struct share {
    // told: records waits that are caused only by a lack of memory; must outlive this object. Null: not recorded.
    explicit share(std::uint64_t limit, staging::slab_waits* told = nullptr) noexcept : limit_bytes(limit), waits(told) {}
    const std::uint64_t limit_bytes;
    staging::slab_waits* const waits;
    std::atomic<std::uint64_t> used_bytes{0};
  };
  // at_once: returns how many concurrent fills the source wants now; called repeatedly. by and of must outlive the fills.
  // least_piece_bytes: shorter fills cost the source more than they save, even if fewer are then in flight.
  // soon: returns how many concurrent fills the source may want before a request that begins now ends; empty: at_once.
  turnstile(staging::lanes& by, share& of, std::function<unsigned()> at_once, std::uint64_t least_piece_bytes = staging::small_slab_bytes,
            std::function<unsigned()> soon = {});

  // Returns the length of each fill for a request of that many bytes: short enough to give the source as many concurrent fills as it wants.
  // If that many are already in flight or queued, returns the maximum, because shorter fills would only add requests. lanes: as
  // io_options::lanes, a limit on the number of fills that the request is divided into; 0: no limit.
  [[nodiscard]] std::uint64_t piece_bytes(std::uint64_t request_bytes, unsigned lanes = 0) const noexcept;
  [[nodiscard]] unsigned under_way() const noexcept {
    const std::lock_guard guard(lock_);
    return under_way_;
  }

  // Queues work items, if any. When run, each starts one fill and calls began(), or ends.
  void push(staging::work_list& list, const staging::work_chain& works) noexcept;
  // Runs one work item from the list on the calling thread, for a stopped request whose items only have to end. Returns false if the list
  // is empty.
  bool help(staging::work_list& list);
  // Count a fill that starts or has completed.
  void began(std::uint64_t bytes) noexcept;
  void ended(std::uint64_t bytes) noexcept;
  // Has a lane start queued fills, if any can start now. Call this when at_once() has risen.
  void call() noexcept;
  // Runs queued work on a lane.
  bool run() override;

 private:
  [[nodiscard]] bool is_open() const noexcept;
  [[nodiscard]] bool opens() noexcept;  // like is_open(), but also records waits
  [[nodiscard]] std::uint64_t most_piece_bytes(unsigned at_once) const noexcept;

  staging::lanes& lanes_;
  share& share_;
  const std::function<unsigned()> at_once_;
  const std::uint64_t least_piece_bytes_;
  const std::function<unsigned()> soon_;
  staging::work_list list_;
  staging::work_queue queue_;
  mutable spin_lock lock_;   // guards the members below
  unsigned under_way_ = 0;   // fills in flight
  std::uint64_t bytes_ = 0;  // bytes in these fills
  std::int64_t lacks_memory_since_ns_ = 0;
  std::shared_ptr<turnstile> called_;  // this object, while a lane has been requested for it or runs it
};

}  // namespace penstock::source
