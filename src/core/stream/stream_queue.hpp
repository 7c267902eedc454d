// Queues a request on a device stream. If the stream cannot accept it, the host waits for the stream and runs the request itself.
#pragma once

#include <memory>

#include "core/file_core.hpp"
#include "core/runtime.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

// Ok: queued or done; *bytes_done gives the result. On error, the request has ended and may have transferred some of its bytes. Errors:
// unsupported (also if the engine's options force a path other than staged) and others.
status queue_on_stream(const std::shared_ptr<runtime>& with, const std::shared_ptr<file_core>& file, const stream_request& what,
                       bool is_write);

}  // namespace penstock::core
