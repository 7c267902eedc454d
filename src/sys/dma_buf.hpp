// Reads and writes of device memory exported as a dma-buf, by fixed requests of an io_uring. The interface is that of Linux 7.4; its
// structures are declared here because distribution headers lack them. Free functions; thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// The most bytes of a registered dma-buf.
inline constexpr std::uint64_t most_dma_buf_bytes = std::uint64_t{1} << 30;

// Checks whether the kernel supports dma-buf registration, by registering an invalid descriptor: a kernel that supports it looks the
// descriptor up, an older one rejects bits that must be zero. (Derived from the kernel source; not tried on such a kernel.) Creates and
// destroys a ring. Errors: those of ring::register_dma_buf() and kernel::make_ring(); the message says why drives cannot reach device
// memory.
status dma_bufs_known(kernel& of);

}  // namespace penstock::sys
