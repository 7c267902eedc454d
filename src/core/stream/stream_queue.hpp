// The way of a request onto a device stream. Where the stream cannot take it, the host waits for the stream and runs the request itself.
#pragma once

#include <memory>

#include "core/file_core.hpp"
#include "core/runtime.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

// Ok: queued, or done; it says how it ended in *bytes_done. An error: it is over, and may have moved some of the bytes. Errors:
// unsupported, also where the engine's options insist on another path than staged.
status queue_on_stream(const std::shared_ptr<runtime>& with, const std::shared_ptr<file_core>& file, const stream_request& what,
                       bool is_write);

}  // namespace penstock::core
