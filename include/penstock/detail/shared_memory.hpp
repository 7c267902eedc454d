// Device memory of one process in another process on the same host. For the Python package. Not for programs: any version may change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock {

class device_buffer;
class engine;

namespace detail {

struct shared_allocation {
  std::string handle;        // any bytes
  std::uint64_t offset = 0;  // of the memory in the mapping
  std::uint64_t length = 0;  // bytes from there to the end of the allocation
  int descriptor = -1;       // pass it to the other process; -1: none is needed
};

// Describes the allocation that contains device memory. The caller closes the descriptor. May take milliseconds. Errors: bad_memory,
// unsupported (with the reason), forked.
PENSTOCK_API result<shared_allocation> share_memory(const engine& of, const void* memory);

// Maps bytes of memory that a process (its PID as seen here) shares. Writes through the mapping change that process's memory. Memory from
// cudaMalloc is valid only while that process runs and has not freed it. Does not close the descriptor. May take milliseconds. Errors:
// not_found (the device), bad_memory (fewer bytes), unsupported, device, forked.
PENSTOCK_API result<device_buffer> open_shared_memory(const engine& by, std::string_view device, const shared_allocation& what,
                                                      std::size_t bytes, std::int64_t process);

}  // namespace detail
}  // namespace penstock
