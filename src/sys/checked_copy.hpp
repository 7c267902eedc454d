// Copies into a caller's memory, which might not be writable.
#pragma once

#include <cstddef>

#include "penstock/status.hpp"

namespace penstock::sys {

// Behaves like pread(): returns the number of bytes copied, which is smaller if the memory after them is not writable. The kernel does the
// copying, because a store by this process would raise a fatal signal. Blocks while it copies; thread-safe. Errors: bad_memory (EFAULT:
// part of the first block of memory is not writable), and the errno if no descriptors are left.
result<std::size_t> copy_checked(void* target, const void* source, std::size_t bytes);

}  // namespace penstock::sys
