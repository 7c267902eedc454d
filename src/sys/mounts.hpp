// Facts about mounted file systems. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::sys {

// Returns true if a file system with this f_type (statfs(2)) gets its files from a server, over a network or from another process (FUSE).
bool is_from_server(std::uint64_t filesystem_magic) noexcept;

// Returns the maximum number of bytes that the file system on this device (st_dev) requests from its server in one read: rsize for NFS and
// SMB, max_read for FUSE. 0: unknown. Reads /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device) noexcept;
// The same for the given contents of /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device, std::string_view mountinfo) noexcept;

}  // namespace penstock::sys
