// Jobs that carry many small ranges in one slab: what batches and small asynchronous requests share of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/admission.hpp"
#include "path/data_path.hpp"

namespace penstock::core {

// As many blocks of 4 KiB as fit a slab of 1 MiB.
inline constexpr std::size_t most_ranges_per_job = staging::mib / (path::direct_alignment + sizeof(device::segment));

// The room of a range in a slab, as staged lays it out, with its line of the table. A job's must not exceed the largest slab.
std::uint64_t room_of(std::uint64_t offset, std::uint64_t length);

// Makes a new job, which stays where it is, one that gathers ranges in (or of) memory at place. Throws bad_alloc.
void prepare_gather(path::job& made, path::job_owner& owner, path::job_queues& queues, runtime& with, const staging::place& place,
                    bool is_write);

// The outcomes of the ranges of a job, each of which is a request of its own. Those that ended well are counted together, at the end.
class outcomes {
 public:
  outcomes(const path::job& ended, runtime& with) : with_(with), is_write_(ended.is_write) {}
  outcomes(const outcomes&) = delete;
  outcomes& operator=(const outcomes&) = delete;
  ~outcomes() {
    if (requests_ > 0) with_.stats().count_requests(is_write_, requests_, bytes_);
  }
  // error: of the whole job. Takes what it needs out of range.
  io_result of(path::gather_range& range, const status& error, admission& admitted);

 private:
  runtime& with_;
  const bool is_write_;
  std::uint64_t requests_ = 0;
  std::uint64_t bytes_ = 0;
};

// For job_owner::hand_over, which comes only ever because a ring died: the job runs again, and finds none.
void run_again(path::job& refused, const status& why, runtime& with);

}  // namespace penstock::core
