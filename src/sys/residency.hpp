// Measures how much of a file range is in the page cache. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// Returns how many bytes of [offset, offset+length) are in the page cache, in whole pages: length if no page is missing, otherwise less.
// Does not read the file. Uses cachestat(2) (Linux 6.5), otherwise mincore(2) on a read-only mapping. Both report the truth only to callers
// that may write to the file (mincore since 5.0, cachestat since 6.13). Errors: unsupported for other callers, and if neither call exists;
// otherwise the errno of the failed call.
result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length);

// The shortest range that may be estimated.
inline constexpr std::uint64_t least_estimated_bytes = std::uint64_t{1} << 20;

// Estimates the same from samples, for files on which the kernel reports nothing to this process, such as a shared read-only data set.
// Returns 0 if none of up to 64 sampled pages is in the page cache, length if all are, otherwise a value in between. A missing page is read
// and then dropped again, which takes as long as one disk read. fd must be open for reading and not used by other threads; it is left
// unchanged. Errors: unsupported (the file system does not support non-blocking reads, such as NFS and overlayfs).
result<std::uint64_t> estimate_resident_bytes(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
