// Computes the sums of the weights cache's digest, which python/penstock/weights_cache/_digest.py defines. Only for the Python package: any
// version may change it. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "penstock/status.hpp"

namespace penstock {

class engine;

namespace detail {

constexpr std::uint64_t digest_row_bytes = 4096;

// Memory whose bytes, padded with zeros to whole rows, are the digest's rows from first_row on. Any alignment.
struct digest_part {
  const void* memory = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t first_row = 0;
};

using digest_sums = std::array<std::uint64_t, 4>;

// Returns the sums of host memory. Computes them on the calling thread.
PENSTOCK_API digest_sums digest_of(std::span<const digest_part> parts) noexcept;

// Queues an operation on a stream of a device. It adds the sums of the parts to `sums`, four integers in memory of the same device. All
// this memory must stay valid until the stream has run the operation. The first call on a device loads a kernel, and may wait for the
// device; later calls do not block. To load the kernel early, pass an empty list. Errors: bad_memory (sums), unsupported (the kernel
// cannot be loaded), device, forked.
PENSTOCK_API status add_to_digest(const engine& by, std::span<const digest_part> parts, std::uint64_t* sums, void* stream);

}  // namespace detail
}  // namespace penstock
