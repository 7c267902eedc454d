// How much of a file range lies in the page cache. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// Bytes of [offset, offset+length) in the page cache, to the page; length where no page of it is missing, else less. Does not read the
// file. Asks cachestat(2) (Linux 6.5), else mincore(2) over a read-only mapping. Both tell the truth only to who may write the file
// (mincore since 5.0, cachestat since 6.13); to others, and where neither exists: errc::unsupported. Else the errno of the call.
result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length);

// Ranges from this length on may be estimated.
inline constexpr std::uint64_t least_estimated_bytes = std::uint64_t{1} << 20;

// The same estimated from samples, for files of which the kernel tells nothing, such as a data set that is shared read-only: 0 where none
// of up to 64 sampled pages is in the page cache, length where all are, something between else. A sampled page that is not there is read
// and dropped again, which takes as long as one read of the disk. fd is open for reading, belongs to the caller alone, and is left as it
// was. Errors: unsupported (a file system that cannot be asked without waiting, such as NFS and overlayfs).
result<std::uint64_t> estimate_resident_bytes(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
