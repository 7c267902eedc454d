// The sums of the weights cache's digest. python/penstock/weights_cache/_digest.py defines them. Internal to the Python package: any
// version may change it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "penstock/status.hpp"

namespace penstock {

class engine;

namespace detail {

constexpr std::uint64_t digest_row_bytes = 4096;

// Memory whose bytes, padded with zeros, are rows of the digest. Any alignment.
struct digest_part {
  const void* memory = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t first_row = 0;
};

using digest_sums = std::array<std::uint64_t, 4>;

// Returns the sums of host memory. Computes on the calling thread.
PENSTOCK_API digest_sums digest_of(std::span<const digest_part> parts) noexcept;

// Queues an addition on a stream of a device: the sums of the parts are added to sums, four integers in memory of the same device. Returns
// at once. The memory must stay valid until the stream has passed the operation. An empty list adds nothing, but loads what later calls
// need, which may wait for the device. Errors: bad_memory (sums), unsupported (the kernel cannot be loaded), device, forked.
PENSTOCK_API status add_to_digest(const engine& by, std::span<const digest_part> parts, std::uint64_t* sums, void* stream);

}  // namespace detail
}  // namespace penstock
