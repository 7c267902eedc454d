// Implements the ring interface with liburing. A ring belongs to its creator and is used by one thread at a time.
//
// Every request that queue_read() or queue_write() accepts yields exactly one completion from reap(), even if submit() failed: a request
// that the kernel rejected completes with that -errno. Reap all requests before destroying the ring, because until then the kernel may
// write to their memory. The destructor asserts this.
#pragma once

#include <memory>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// entries: the size of the submission queue, rounded up to a power of two and limited to the kernel's maximum. More requests than this may
// be in flight. The ring is tested with an empty request before it is returned. Errors: unsupported (no io_uring), permission_denied
// (sysctl or seccomp denies creating or using rings), out_of_memory (some kernels count rings against RLIMIT_MEMLOCK), invalid_argument
// (entries is 0).
result<std::unique_ptr<ring>> make_uring(unsigned entries);

}  // namespace penstock::sys
