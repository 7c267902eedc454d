// Reads file data into the page cache in large requests. Thread-safe.
#pragma once

#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

// The unit of read_into_cache().
inline constexpr std::uint64_t cache_block_bytes = std::uint64_t{2} << 20;

// Reads all blocks of cache_block_bytes that are entirely in [offset, offset+length) into the page cache. Each block gets one page of that
// size if the file system supports such pages (ext4 since Linux 6.16, XFS). Ordinary reads create smaller pages, which are slower to read
// from a virtual disk and slower to copy from. Blocks. fd must be open for reading. This is only a hint: a later read fetches anything that
// is missing. Errors: unsupported if the kernel would read page by page (before 6.16, or without huge pages); otherwise the errno of the
// failed call, also if a block is past the end of the file.
status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length);

}  // namespace penstock::sys
