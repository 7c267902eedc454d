// Reading and writing a file range through whichever descriptor there is, in a loop until done: what posix and staged share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "path/data_path.hpp"
#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::path {

// Reads length bytes at offset into host memory. Uses the page cache; a file with only an O_DIRECT descriptor is read in whole blocks
// through an aligned buffer. Short count only at end of file; bytes_done is true on failure.
io_result read_fully(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset);

// The same through the page cache, in blocks that pass through a small buffer, so that target is not left dirty in this CPU's caches: for
// a slab that a device reads at once (see staging/stream_copy.hpp). Costs a quarter more CPU time.
io_result read_streaming(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset);

// Whether a range can be written at all: a file with only an O_DIRECT descriptor takes aligned ranges only, since anything else would need
// a read-modify-write, which can lose a neighbour's bytes. source: null where it will be aligned. Errors: invalid_argument, which names the
// alignment.
status writable(const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset);
// Writes likewise, what is writable.
io_result write_fully(sys::kernel& kernel, const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset);

// Whether the file ends at offset or before, by the kernel's own count of 0: st_size may be 0 or stale (/proc, sysfs, FUSE, a block device
// that grew). For paths that were given less than they asked for. Errors: of the read.
result<bool> ends_at(sys::kernel& kernel, const file_view& file, std::uint64_t offset);

// The same through direct_fd only; target, length and offset are aligned.
io_result read_direct(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset);
// Reads the whole blocks around any range through direct_fd; block is aligned and has room for them. The range then lies
// offset % direct_alignment behind it, and its bytes alone are counted.
io_result read_blocks_around(sys::kernel& kernel, const file_view& file, std::byte* block, std::uint64_t length, std::uint64_t offset);
io_result write_direct(sys::kernel& kernel, const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset);

}  // namespace penstock::path
