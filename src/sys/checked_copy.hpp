// Copies into memory of callers that may not be writable.
#pragma once

#include <cstddef>

#include "penstock/status.hpp"

namespace penstock::sys {

// Behaves as pread() would: returns the number of copied bytes, fewer if the memory from there on is not writable. The kernel copies,
// because a store by this process would end it with a signal. Blocks while it copies; thread-safe. Errors: bad_memory (EFAULT: part of the
// first block of memory is not writable), and errno if there are no descriptors left.
result<std::size_t> copy_checked(void* target, const void* source, std::size_t bytes);

}  // namespace penstock::sys
