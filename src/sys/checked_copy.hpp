// Copies into memory of callers, of which nobody knows whether it can be written.
#pragma once

#include <cstddef>

#include "penstock/status.hpp"

namespace penstock::sys {

// As pread() would: returns how many bytes were copied, fewer where the memory cannot be written from there on. The kernel copies, since a
// store of this process's own would end it with a signal. Blocks for as long as the copy takes; thread-safe. Errors: bad_memory (EFAULT: a
// part of the first block of memory cannot be written), and errno where there are no descriptors.
result<std::size_t> copy_checked(void* target, const void* source, std::size_t bytes);

}  // namespace penstock::sys
