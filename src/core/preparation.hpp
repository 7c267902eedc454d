// What the first read of a file into a device needs, made by lanes before that read comes: staging memory, streams, events, a kernel and
// memory of the device. A read that comes sooner makes what it needs itself.
#pragma once

#include <string_view>

#include "core/file_core.hpp"

namespace penstock::core {

// Returns when the lanes have been asked; once for each device. device: a name, as in devices(). Errors: not_found, invalid_argument,
// closed, forked, device.
status prepare(file_core& file, std::string_view device);

// The same on the calling thread, which it may hold up for as long as the driver takes.
void prepare_here(staging::link& via);

}  // namespace penstock::core
