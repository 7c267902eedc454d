// How much of a file range lies in the page cache. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// Bytes of [offset, offset+length) in the page cache, to the page, never more than length. Does not read the file.
// Asks cachestat(2) (Linux 6.5), else mincore(2) over a read-only mapping. Both tell the truth only to who may write the file
// (mincore since 5.0, cachestat since 6.13); to others, and where neither exists: errc::unsupported. Else the errno of the call.
result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
