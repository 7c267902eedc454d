// Groups small transfers. Each mount has one collector, and another for background requests. Transfers are grouped into loads: those of one
// device context (or of host memory) and one direction share a slab and a copy, because a separate copy for each would cost 4 us of the
// feeder's time on a GPU. A batch submits a shipment of transfers at once. Single requests add themselves, and share a load with the others
// that have arrived when a lane takes them. None waits for others, because the first one calls a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/spin_lock.hpp"
#include "core/operation.hpp"
#include "core/request/admission.hpp"
#include "core/request/decide.hpp"
#include "path/data_path.hpp"
#include "staging/disk_lanes.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class collector;
class load;

// Owns many small items that are stopped together: a batch.
class sender : public operation {
 public:
  using operation::operation;
  // Returns the admission of an item that has not completed. Items are numbered from 0.
  [[nodiscard]] virtual admission& admission_of(std::uint32_t index) noexcept = 0;
  // Reports that these items have completed and been counted. Their outcomes are in their ranges and may be moved out. This may be
  // destroyed on return.
  virtual void carried(std::span<path::gather_range> items) noexcept = 0;
};

// The small items of one sender on one mount. For one thread until flush(). Must outlive the loads.
class shipment {
 public:
  shipment(collector& by, sender& from) noexcept;

  [[nodiscard]] const collector& by() const noexcept { return by_; }
  // Adds an item that has been located. The lanes must have started their threads. If it throws (bad_alloc), the item was not added.
  void add(admission& item, std::uint32_t index);
  // Submits the items once all have been added. Cannot fail.
  void flush() noexcept;
  // Works on one load that no lane has taken yet. Returns false if there is none, or if the loads are background work.
  bool help();
  // Ends the waiting items of a stopped sender.
  void end_queued() { path::end_queued(queues_); }

 private:
  friend class load;
  void ask_residency();

  collector& by_;
  sender& from_;
  const std::size_t ranges_per_load_;
  path::job_queues queues_;
  load* newest_ = nullptr;
};

class small_request final : public operation {
 public:
  small_request(std::shared_ptr<core::runtime> with, admission admitted, collector& by)
      : operation(std::move(with)), admitted_(std::move(admitted)), by_(by) {
    admitted_.list();
  }
  // Completes a request that is not in a load. This may be destroyed on return.
  void end(io_result outcome) noexcept;
  void end_queued() override;

 private:
  friend class collector;
  friend class load;
  ~small_request() override = default;

  admission admitted_;
  collector& by_;
  // The request's position. Owned by the collector and guarded by its lock.
  bool waits_ = false;
  small_request* next_ = nullptr;
  small_request* previous_ = nullptr;
  load* load_ = nullptr;
};

// Thread-safe. Holds no requests when the engine is destroyed, because each request keeps the engine alive.
class collector final : public staging::work {
 public:
  // most_under_way: the maximum number of loads of single requests in flight. Further requests wait until a load has completed, and
  // therefore form larger loads. of: the priority of its requests and of the lanes. Does not use the file system's members before the first
  // request.
  collector(runtime& with, staging::lanes& lanes, staging::disk_lanes& disk, staging::right_of_way& way, request_priority of,
            std::size_t most_under_way)
      : runtime_(with), lanes_(lanes), disk_(disk), way_(way), priority_(of), most_under_way_(most_under_way) {}

  // Takes over the running request's reference. The lanes must have started their threads.
  void add(small_request& added) noexcept;
  // Runs on a lane. Transfers the requests that have arrived.
  bool run() override;
  // Ends a stopped request that is not in a load yet. For one whose load has not started, ends that load.
  void withdraw(small_request& stopped);

 private:
  friend class load;
  friend class shipment;

  load* take();
  void arrived(const load& ended) noexcept;
  template <class Change>
  void with_lock(Change change) noexcept;
  void unlink(small_request& gone) noexcept;
  void direct(path::job_queues& jobs) const noexcept;
  [[nodiscard]] bool is_background() const noexcept { return priority_ == request_priority::background; }

  runtime& runtime_;
  staging::lanes& lanes_;
  staging::disk_lanes& disk_;
  staging::right_of_way& way_;
  const request_priority priority_;
  const std::size_t most_under_way_;
  staging::work_list list_;
  spin_lock lock_;  // guards the members below
  small_request* head_ = nullptr;
  small_request* tail_ = nullptr;
  std::size_t waiting_ = 0;    // number of requests in that list
  std::size_t under_way_ = 0;  // loads of single requests
  bool called_ = false;        // a lane has been called and has not taken its share yet; only one takes at a time
};

}  // namespace penstock::core
