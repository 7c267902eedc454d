// Reads and writes files without an engine. Free functions, thread-safe; use a descriptor from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// An open descriptor, closed by the destructor.
class owned_fd {
 public:
  owned_fd() = default;
  explicit owned_fd(int fd) : fd_(fd) {}
  owned_fd(owned_fd&& other) noexcept;
  owned_fd& operator=(owned_fd&& other) noexcept;
  ~owned_fd();
  [[nodiscard]] int get() const { return fd_; }
  // Closes the descriptor now. Errors: those of close(2), with the path.
  status close(const std::string& path);

 private:
  int fd_ = -1;
};

// Fills the target from the file with pread. Errors: os errors; io if the file is too short.
status read_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> target);
// Writes all bytes with pwrite. Errors: os errors.
status write_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<const std::byte> source);

}  // namespace penstock::cli
