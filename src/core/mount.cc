#include "core/mount.hpp"

#include <algorithm>

namespace penstock::core {

namespace {

using namespace std::chrono_literals;

// Enough to keep up with a link's copies if one core reads 4.4 GB/s from the page cache, bypassing its own caches. (H100, 16 cores: reads
// of 16 MiB reach 29 GB/s with 8 or 10 lanes, 47 GB/s with 12 and 14.)
unsigned stream_lane_count(unsigned cores) { return std::clamp(cores * 3 / 4, 1U, 12U); }

// Work ahead of the streams is sometimes late. Streams then wait for it as they do for urgent work.
constexpr unsigned most_urgent = 7;

unsigned keeping_lane_count(unsigned cores) { return std::clamp(cores / 2, 1U, 4U); }

// One thread keeps a disk or the page cache busy with pieces of several megabytes. A second one works while the first waits for a disk.
unsigned background_lane_count(unsigned cores) { return cores > 2 ? 2 : 1; }

// Each thread holds a 1 MiB slab, and this many slabs are reserved for each file system's lanes.
constexpr unsigned most_waiting_for_device = 64;

// On few cores, spinning threads take CPU time from working ones.
std::chrono::microseconds spin(const runtime& with, std::chrono::microseconds time) { return with.few_cores() ? 0us : time; }

status ring_refusal(const engine_options& options) {
  if (options.use_io_uring) return {};
  return {errc::unsupported, "io_uring was switched off for this engine"};
}

}  // namespace

mount::mount(runtime& with, std::uint64_t device)
    : device_(device),
      cuda_stream_memory_(with.pool(false)),
      host_stream_memory_(with.pool(true)),
      right_of_way_(&with.stats()),
      collector_(with, lanes_, disk_, right_of_way_, request_priority::normal, with.lane_count()),
      background_collector_(with, background_lanes_, disk_, right_of_way_, request_priority::background,
                            background_lane_count(with.cores())),
      disk_(staging::disk_lanes::usual_count(with.cores()), with.kernel(), with.feeders(), ring_refusal(with.options()), &answer_times_),
      pinner_(waiting_for_device_, disk_),
      lanes_(with.lanes(), spin(with, 500us), &with.feeders()),
      stream_lanes_({.most = stream_lane_count(with.cores()), .usual = stream_lane_count(with.cores()), .urgent_in_a_row = most_urgent},
                    spin(with, 200us), nullptr),
      keeping_lanes_(keeping_lane_count(with.cores()), 0us, &with.feeders(), "penstock-k"),
      background_lanes_(
          {.most = background_lane_count(with.cores()), .usual = background_lane_count(with.cores()), .behind = &right_of_way_}, 0us,
          &with.feeders(), "penstock-b"),
      cold_speeds_(keeping_lane_count(with.cores())),
      waiting_for_device_(most_waiting_for_device, thread_answer_times_, with.feeders()),
      waiting_for_host_(staging::answer_times::most_at_once, thread_answer_times_, with.feeders()) {}

void mount::direct(path::job_queues& jobs, request_priority of) noexcept {
  jobs.background = of == request_priority::background;
  jobs.lanes = &lanes(of);
  jobs.keeping = jobs.background ? &background_lanes_ : &keeping_lanes_;
  jobs.disk = &disk_;
  jobs.pinner = &pinner_;
}

mount::~mount() {
  disk_.stop();  // its last completions may need lanes, and a lane's last work item may be to wake it
}

status mount::rest() {
  auto problem = disk_.rest();
  for (auto* each : {&lanes_, &stream_lanes_, &keeping_lanes_, &background_lanes_}) each->rest();
  for (auto* each : {&waiting_for_device_, &waiting_for_host_}) each->rest();
  return problem;
}

}  // namespace penstock::core
