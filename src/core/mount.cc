#include "core/mount.hpp"

#include <algorithm>

#include "core/engine_core.hpp"

namespace penstock::core {

namespace {

using namespace std::chrono_literals;

// Enough to keep up with a link's copies where one core reads 5 GB/s out of the page cache past its own caches.
unsigned stream_lane_count(unsigned cores) { return std::clamp(cores / 4, 1U, 4U); }

// Where cores are few, who spins takes them from who works.
std::chrono::microseconds spin(const engine_core& engine, std::chrono::microseconds time) { return engine.few_cores() ? 0us : time; }

status ring_refusal(const engine_options& options) {
  if (options.use_io_uring) return {};
  return {errc::unsupported, "io_uring was switched off for this engine"};
}

}  // namespace

// One ring serves 150,000 requests a second, or any drive of this day in pieces of a megabyte.
unsigned mount::disk_lane_count(unsigned cores) noexcept { return cores >= 32 ? 2 : 1; }

mount::mount(engine_core& engine, std::uint64_t device)
    : device_(device),
      cuda_stream_memory_(engine.pool(false)),
      host_stream_memory_(engine.pool(true)),
      small_(engine, lanes_, disk_, engine.lane_count()),
      disk_(disk_lane_count(engine.cores()), engine.kernel(), engine.feeders(), ring_refusal(engine.options())),
      lanes_(engine.lane_count(), spin(engine, 500us), &engine.feeders()),
      stream_lanes_(stream_lane_count(engine.cores()), spin(engine, 50us), nullptr) {}

mount::~mount() {
  disk_.stop();  // its last completions may need lanes; and the last that a lane does may be to wake it
}

}  // namespace penstock::core
