// Reads and writes device memory that is exported as a dma-buf, with fixed-buffer requests on an io_uring. Uses the interface of Linux 7.4,
// which distribution headers do not declare yet. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// The maximum size of a registered dma-buf.
inline constexpr std::uint64_t most_dma_buf_bytes = std::uint64_t{1} << 30;

// Checks whether the kernel supports dma-buf registration by registering an invalid descriptor: a kernel that supports it looks up the
// descriptor, while an older one rejects bits that must be zero. (Derived from the kernel source; not tried on such a kernel.) Creates and
// destroys a ring. Errors: those of ring::register_dma_buf() and kernel::make_ring(); the message says why drives cannot access device
// memory.
status dma_bufs_known(kernel& of);

}  // namespace penstock::sys
