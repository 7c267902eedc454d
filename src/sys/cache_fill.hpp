// How what is not in the page cache gets there in large requests. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// What read_into_cache() reads at once.
inline constexpr std::uint64_t cache_block_bytes = std::uint64_t{2} << 20;

// Reads the whole blocks of cache_block_bytes that lie in [offset, offset+length) of a file into the page cache, each into one page of its
// size where the file system has such (ext4 since Linux 6.16, XFS). Reads bring smaller pages: a virtual disk gives less to them, and
// copies out of them are slower. Blocks. fd is open for reading. A hint, on which nothing depends: what this has not brought, a read
// brings. Errors: unsupported where the kernel would read page by page (before 6.16, or without huge pages); else of the call that failed,
// also where a block lies behind the end of the file.
status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
