// io_uring behind the ring interface, over liburing. A ring belongs to its maker and is for one thread at a time.
//
// Every request that queue_read or queue_write accepted yields exactly one completion from reap, also after submit() has
// failed: what the kernel then refused completes with that -errno. The caller reaps all of them before it destroys the ring,
// because until then the kernel may write into their memory; the destructor asserts it.
#pragma once

#include <memory>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// entries: length of the submission queue, rounded up to a power of two and cut to what the kernel allows. More requests than
// entries may be in flight. The ring has carried an empty request before it is returned. Errors: unsupported (no io_uring),
// permission_denied (disabled by sysctl or seccomp, making rings or using them), out_of_memory (some kernels count rings against
// RLIMIT_MEMLOCK), invalid_argument (no entries).
result<std::unique_ptr<ring>> make_uring(unsigned entries);

}  // namespace penstock::sys
