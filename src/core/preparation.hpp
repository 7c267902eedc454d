// Prepares the engine's lanes for the first read from a file into device memory: staging memory, streams, events, a kernel and device
// memory. A read that starts before this has completed prepares what it needs itself.
#pragma once

#include <string_view>

#include "core/file_core.hpp"

namespace penstock::core {

// Queues the work on the lanes and returns. Only the first call per device has an effect. device: a name, as in devices(). Errors:
// not_found, invalid_argument, closed, forked, device.
status prepare(file_core& file, std::string_view device);

// Does the same on the calling thread. Blocks until the driver has finished.
void prepare_here(staging::link& via);

}  // namespace penstock::core
