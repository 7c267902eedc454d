// Prepares the process for a checkpoint: CRIU cannot dump io_uring, and restores neither connections to servers nor System V memory.
#pragma once

#include <chrono>

#include "penstock/status.hpp"

namespace penstock {

// Waits until no request of any engine in this process is in flight, then ends the library's threads, closes its rings, its connections to
// servers and NVIDIA's libcufile, frees its pinned memory, unregisters pinned files and registered memory, and makes key-value stores
// durable. Files and stores stay open. The next call of any kind restores everything. Calls on other threads wait or complete meanwhile;
// they never fail. For a checkpoint, make no call between this one and the freeze. Without a timeout, waits without limit. Blocks. Errors:
// unsupported (something cannot be frozen, and the message names it: an open pipe or listener, another process's device memory, a libcufile
// that the program has opened, a failed ring), timed_out (the message names requests in flight), invalid_argument (called from a callback,
// or from a signal handler during a call), io (a store cannot be made durable). After an error, everything remains usable.
PENSTOCK_API status quiesce(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());

}  // namespace penstock
