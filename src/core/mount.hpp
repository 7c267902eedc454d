// Serves the files of one file system: its lanes (worker threads) of each kind, and the collectors for its small requests. A file system
// that hangs blocks only its own threads, so requests on other file systems continue. Owned by the engine, from the opening of the first
// file on the file system until the engine is destroyed.
#pragma once

#include <cstdint>

#include "core/cache/cold_speeds.hpp"
#include "core/request/collector.hpp"
#include "core/stream/stream_memory.hpp"
#include "path/data_path.hpp"
#include "staging/answer_times.hpp"
#include "staging/disk_lanes.hpp"
#include "staging/lanes.hpp"
#include "staging/slab_pinner.hpp"
#include "staging/waiting_lanes.hpp"

namespace penstock::core {

class mount {
 public:
  // Starts no thread. Each thread starts with its first work item. device: st_dev of the file system, or st_rdev of a block device.
  mount(runtime& with, std::uint64_t device);
  mount(const mount&) = delete;
  mount& operator=(const mount&) = delete;
  ~mount();  // runs the queued work
  // Ends all threads and closes the rings. The next work starts them again. No request may be in flight.
  // Error: unsupported if a ring stays open.
  status rest();

  [[nodiscard]] std::uint64_t device() const noexcept { return device_; }
  [[nodiscard]] staging::lanes& lanes() noexcept { return lanes_; }
  [[nodiscard]] staging::disk_lanes& disk() noexcept { return disk_; }
  // The few lanes that read uncached bytes through the page cache. The kernel reads ahead of them, and more threads only interfere with
  // each other. (H200 machine: 1 to 4 threads are as fast as O_DIRECT at 0.15 to 0.24 CPU s/GB; 16 are slower at 2.9.)
  [[nodiscard]] staging::lanes& keeping_lanes() noexcept { return keeping_lanes_; }
  [[nodiscard]] core::cold_speeds& cold_speeds() noexcept { return cold_speeds_; }
  // How slowly a file system with a server answers.
  [[nodiscard]] staging::answer_times& answer_times() noexcept { return answer_times_; }
  // The same for reads by threads, mostly through the page cache. Such a read takes longer, because the kernel requests one part at a time.
  [[nodiscard]] staging::answer_times& thread_answer_times() noexcept { return thread_answer_times_; }
  // The threads that wait for a slow server, for device memory and for host memory.
  [[nodiscard]] staging::waiting_lanes& waiting(bool for_device) noexcept { return for_device ? waiting_for_device_ : waiting_for_host_; }
  // Threads for stream-ordered requests. They never call into a device driver.
  [[nodiscard]] staging::lanes& stream_lanes() noexcept { return stream_lanes_; }
  // The work items of these threads in order of submission, both those that streams wait for and those done ahead of the streams.
  [[nodiscard]] staging::work_list& stream_works() noexcept { return stream_works_; }
  [[nodiscard]] staging::work_list& stream_works_ahead() noexcept { return stream_works_ahead_; }
  [[nodiscard]] stream_memory& stream_memory_of(const staging::place& place) noexcept {
    return place.emulated() ? host_stream_memory_ : cuda_stream_memory_;
  }
  [[nodiscard]] core::collector& collector(request_priority of = request_priority::normal) noexcept {
    return of == request_priority::background ? background_collector_ : collector_;
  }
  // Threads for background requests: copies, and reads past and through the page cache. They never delay other requests.
  [[nodiscard]] staging::lanes& background_lanes() noexcept { return background_lanes_; }
  [[nodiscard]] staging::lanes& lanes(request_priority of) noexcept {
    return of == request_priority::background ? background_lanes_ : lanes_;
  }
  [[nodiscard]] staging::right_of_way& right_of_way() noexcept { return right_of_way_; }
  // Sets the queues for jobs of requests with this priority.
  void direct(path::job_queues& jobs, request_priority of) noexcept;

 private:
  // Keep this order: on destruction, lanes run their queued work, which needs the members above.
  const std::uint64_t device_;
  staging::answer_times answer_times_;
  staging::answer_times thread_answer_times_;
  stream_memory cuda_stream_memory_;
  stream_memory host_stream_memory_;
  staging::right_of_way right_of_way_;
  core::collector collector_;
  core::collector background_collector_;
  staging::disk_lanes disk_;
  staging::threaded_pinner pinner_;
  staging::lanes lanes_;
  staging::work_list stream_works_;
  staging::work_list stream_works_ahead_;
  staging::lanes stream_lanes_;
  staging::lanes keeping_lanes_;
  staging::lanes background_lanes_;
  core::cold_speeds cold_speeds_;
  staging::waiting_lanes waiting_for_device_;
  staging::waiting_lanes waiting_for_host_;
};

}  // namespace penstock::core
