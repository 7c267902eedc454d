// The only thing that groups small transfers; each mount has one, and another for the background. They travel as loads: those of one device
// context (or of the host's memory) and one direction share a slab and a copy, where a copy of its own would cost each 4 us of the feeder's
// time on a GPU. A batch hands over a shipment of them at once. Single requests hand themselves over and travel with whatever has come when
// a lane gets to them; none waits for company, since a lane is called with the first.
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

// Has many small items, which are stopped together: a batch.
class sender : public operation {
 public:
  using operation::operation;
  // Of an item that has not ended: those are numbered from 0 on.
  [[nodiscard]] virtual admission& admission_of(std::uint32_t index) noexcept = 0;
  // These have ended and been counted. Their outcomes are in their ranges, for the taking. This may be gone on return.
  virtual void carried(std::span<path::gather_range> items) noexcept = 0;
};

// The small items that one sender has on one mount. For one thread, up to flush(); outlives the loads.
class shipment {
 public:
  shipment(collector& by, sender& from) noexcept;

  [[nodiscard]] const collector& by() const noexcept { return by_; }
  // Takes an item that has been located. Threads of the lanes must have been started. Where it throws (bad_alloc), it was not taken.
  void add(admission& item, std::uint32_t index);
  // All have been added: they travel. Does not fail.
  void flush() noexcept;
  // Works on one load that no lane has taken yet. False: there is none, or they are in the background.
  bool help();
  // Ends what has not begun to travel of a sender that was stopped.
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
  // Ends one that does not travel. It may be gone on return.
  void end(io_result outcome) noexcept;
  void end_queued() override;

 private:
  friend class collector;
  friend class load;
  ~small_request() override = default;

  admission admitted_;
  collector& by_;
  // The collector's, with its lock: where this is.
  bool waits_ = false;
  small_request* next_ = nullptr;
  small_request* previous_ = nullptr;
  load* load_ = nullptr;
};

// Thread-safe. Never holds a request when the engine goes, since each keeps it.
class collector final : public staging::work {
 public:
  // most_under_way: loads of single requests that travel at once. More requests wait until one has arrived, and so travel in larger loads.
  // of: what priority its requests have, which the lanes are for. Nothing of the file system is looked at before the first request.
  collector(runtime& with, staging::lanes& lanes, staging::disk_lanes& disk, staging::right_of_way& way, request_priority of,
            std::size_t most_under_way)
      : runtime_(with), lanes_(lanes), disk_(disk), way_(way), priority_(of), most_under_way_(most_under_way) {}

  // Takes over the running request's reference. Threads of the lanes must have been started.
  void add(small_request& added) noexcept;
  // On a lane: carries what has come.
  bool run() override;
  // Ends a request that was stopped, if it has not begun to travel.
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
  spin_lock lock_;  // guards what follows
  small_request* head_ = nullptr;
  small_request* tail_ = nullptr;
  std::size_t waiting_ = 0;    // in that list
  std::size_t under_way_ = 0;  // loads of single requests
  bool called_ = false;        // a lane has been called, and has not taken its share yet: only one at a time takes
};

}  // namespace penstock::core
