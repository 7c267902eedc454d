// What mounted file systems are. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::sys {

// Whether files of a file system with this f_type (statfs(2)) come from a server: over a network, or out of another process (FUSE).
bool is_from_server(std::uint64_t filesystem_magic) noexcept;

// The most bytes in a read that the file system of this device (st_dev) asks its server for: rsize of NFS and SMB, max_read of FUSE. 0: the
// kernel does not say. Reads /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device) noexcept;
// The same, in a given text of /proc/self/mountinfo.
std::uint64_t most_read_at_once(std::uint64_t device, std::string_view mountinfo) noexcept;

}  // namespace penstock::sys
