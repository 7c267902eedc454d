// The memory of this process: resident bytes, and mappings of one kind.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

namespace penstock::testing {

// Returns the resident bytes of the process, after the allocator has returned what it can.
inline std::size_t resident_bytes() {
  ::malloc_trim(0);
  std::ifstream told("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  told >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Returns the number of mappings of files whose name contains this text, such as "memfd:penstock-pipe".
inline std::size_t mappings_of(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

// False under a sanitizer, which keeps freed memory.
inline constexpr bool resident_bytes_tell =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif

}  // namespace penstock::testing
