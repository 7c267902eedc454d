// Reads and writes of memory that a device lends as a dma-buf, by fixed requests of an io_uring: the interface of Linux 7.4, in our own
// words since headers of distributions lack it. Free functions; thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// A dma-buf that is registered has at most so many bytes.
inline constexpr std::uint64_t most_dma_buf_bytes = std::uint64_t{1} << 30;

// Whether the kernel knows them, which is found out by registering a descriptor that is none (derived from its source, never seen): one
// that knows them looks the descriptor up, and one that does not finds bits set that have to be zero. Makes a ring and ends it. Errors:
// those of ring::register_dma_buf() and kernel::make_ring(), in words for whoever wonders why drives do not reach device memory.
status dma_bufs_known(kernel& of);

}  // namespace penstock::sys
