// The process's limit on file sizes (RLIMIT_FSIZE).
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace penstock {

// Returns true if the limit allows a file of this size. Exceeding it raises SIGXFSZ, which kills programs that do not handle the signal. So
// before the library extends a file on its own, it checks the limit and fails with EFBIG.
[[nodiscard]] inline bool fits_file_size_limit(std::uint64_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

}  // namespace penstock
