// Which file a descriptor is open on. The program that owns the descriptor may close it, and the kernel gives its number to the next file
// that is opened. Thread-safe; system calls that do not block.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::cufile {

// The file behind a descriptor, whoever opened it and how often.
struct file_identity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  bool operator==(const file_identity&) const = default;
};

// Nothing where the descriptor is closed.
std::optional<file_identity> identity_of(int descriptor) noexcept;

// Whether two descriptors share one open file (one is a duplicate of the other), by F_DUPFD_QUERY (Linux 6.10) or kcmp(2). Where the kernel
// refuses both: whether they are of the same file.
bool share_open_file(int a, int b) noexcept;

}  // namespace penstock::cufile
