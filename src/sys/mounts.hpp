// Facts about mounted file systems. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::sys {

// Returns whether a file system with this f_type (statfs(2)) gets its files from a server: over a network, or from another process (FUSE).
bool is_from_server(std::uint64_t filesystem_magic) noexcept;

// Returns the most bytes that the file system of this device (st_dev) requests from its server in one read: rsize of NFS and SMB, max_read
// of FUSE. 0: the kernel does not say. Reads /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device) noexcept;
// The same for a given text of /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device, std::string_view mountinfo) noexcept;

}  // namespace penstock::sys
