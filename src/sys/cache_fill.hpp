// Brings file data into the page cache in large requests. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// The unit of read_into_cache().
inline constexpr std::uint64_t cache_block_bytes = std::uint64_t{2} << 20;

// Reads the whole blocks of cache_block_bytes in [offset, offset+length) of a file into the page cache, each into one page of that size if
// the file system supports such pages (ext4 since Linux 6.16, XFS). Ordinary reads create smaller pages: a virtual disk is slower with
// them, and copying out of them is slower too. Blocks. fd must be open for reading. This is only a hint: a later read brings what is
// missing. Errors: unsupported if the kernel would read page by page (before 6.16, or without huge pages); otherwise the errno of the
// failed call, also if a block lies past the end of the file.
status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
