// Identifies the file behind a descriptor. The program that owns the descriptor may close it, after which the kernel assigns its number to
// the next opened file. Thread-safe; uses non-blocking system calls.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::cufile {

// The file behind a descriptor, regardless of who opened it.
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const file_identity&) const = default;
};

// Returns nothing if the descriptor is closed.
std::optional<file_identity> identity_of(int descriptor) noexcept;

// Returns true if two descriptors share one open file description (one is a duplicate of the other), using F_DUPFD_QUERY (Linux 6.10) or
// kcmp(2). If the kernel rejects both, returns true if both refer to the same file.
bool share_open_file(int a, int b) noexcept;

}  // namespace penstock::cufile
