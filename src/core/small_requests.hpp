// Small asynchronous requests. Those that have come when a lane gets to them travel together, like those of a batch: one slab and one copy
// for many, where a copy of its own would cost each 4 us of the feeder's time on a GPU. None waits for company: a lane is called with the
// first.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "core/admission.hpp"
#include "core/decide.hpp"
#include "core/gather.hpp"
#include "core/memory_map.hpp"
#include "core/pending.hpp"
#include "staging/disk_lanes.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class small_requests;

class small_request final : public pending {
 public:
  // Whether such a request is one of these: beginning it makes no driver call and no file I/O.
  static bool suits(core::runtime& with, std::uint64_t length, const io_options& options) noexcept {
    return length <= small_request_bytes && !with.forced(options) && !options.after_default_stream;
  }
  small_request(std::shared_ptr<core::runtime> with, admission admitted, small_requests& home)
      : pending(std::move(with)), admitted_(std::move(admitted)), home_(home) {}
  // Its deadline, from before it is queued.
  status watch() { return watch_deadline(); }
  // Ends one that does not travel. It may be gone on return.
  void end(io_result outcome) noexcept;
  void end_queued() override;

 private:
  friend class small_requests;
  ~small_request() override = default;

  admission admitted_;
  small_requests& home_;
  // The queue's, with its lock: where this is.
  bool waits_ = false;
  small_request* next_ = nullptr;
  small_request* previous_ = nullptr;
  void* group_ = nullptr;
};

// The queue of one file system. Thread-safe. Never holds a request when the engine goes, since each keeps it.
class small_requests final : public staging::work {
 public:
  // most_under_way: groups that travel at once. More requests wait until one has arrived, and so travel in larger groups.
  small_requests(runtime& with, staging::lanes& lanes, staging::disk_lanes& disk, std::size_t most_under_way)
      : runtime_(with), lanes_(lanes), disk_(disk), most_under_way_(most_under_way) {}

  // Takes over the running request's reference. Threads of the lanes must have been started.
  void add(small_request& added) noexcept;
  // On a lane: carries what has come.
  bool run() override;
  // Ends a request that was stopped, if it has not begun to travel.
  void withdraw(small_request& stopped);

 private:
  class group;
  struct chain {  // by next_
    small_request* first = nullptr;
    std::size_t count = 0;
  };

  chain take();
  group* sort(chain taken);
  status join(small_request& each, group*& groups, std::size_t still_to_come, seen_allocation& seen);
  void group_ended(group& ended);
  [[nodiscard]] bool must_call() noexcept;
  void call() noexcept;
  void unlink(small_request& gone) noexcept;

  runtime& runtime_;
  staging::lanes& lanes_;
  staging::disk_lanes& disk_;
  const std::size_t most_under_way_;
  staging::work_list list_;
  spin_lock lock_;  // guards what follows
  small_request* head_ = nullptr;
  small_request* tail_ = nullptr;
  std::size_t waiting_ = 0;    // in that list
  std::size_t under_way_ = 0;  // groups
  bool called_ = false;        // a lane has been called, and has not taken its share yet: only one at a time takes
};

}  // namespace penstock::core
