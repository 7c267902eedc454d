// Maps device memory of one process into another process on the same host. Internal to the Python package: any version may change it.
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
  std::uint64_t offset = 0;  // where the memory begins in the mapping
  std::uint64_t length = 0;  // bytes from there to the end of the allocation
  int descriptor = -1;       // pass it to the other process; -1: not needed
};

// Describes the allocation that contains device memory. The caller closes the descriptor. May take milliseconds. Errors: bad_memory,
// unsupported (with the reason), forked.
PENSTOCK_API result<shared_allocation> share_memory(const engine& of, const void* memory);

// Maps memory that another process shares (process: its PID as seen here). Writes through the mapping change that process's memory. A
// mapping of cudaMalloc memory is valid only until that process frees the memory or ends. Does not close the descriptor. May take
// milliseconds. Errors: not_found (the device), bad_memory (fewer bytes), unsupported, device, forked.
PENSTOCK_API result<device_buffer> open_shared_memory(const engine& by, std::string_view device, const shared_allocation& what,
                                                      std::size_t bytes, std::int64_t process);

}  // namespace detail
}  // namespace penstock
