// The limit of this process on the size of files (RLIMIT_FSIZE).
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace penstock {

// Whether a file may have so many bytes. Making it larger raises SIGXFSZ, which ends programs that do not expect it. So what the library
// does of its own accord asks first, and fails with EFBIG.
[[nodiscard]] inline bool fits_file_size_limit(std::uint64_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

}  // namespace penstock
