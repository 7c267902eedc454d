// Files as read and written without an engine. Free functions, safe from any thread; a descriptor is for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/status.hpp"

namespace penstock::cli {

// An open descriptor, closed at its end.
class owned_fd {
 public:
  owned_fd() = default;
  explicit owned_fd(int fd) : fd_(fd) {}
  owned_fd(owned_fd&& other) noexcept;
  owned_fd& operator=(owned_fd&& other) noexcept;
  ~owned_fd();
  [[nodiscard]] int get() const { return fd_; }
  // Closes it now. Errors: what close(2) says, naming the path.
  status close(const std::string& path);

 private:
  int fd_ = -1;
};

// Fills the target from the file, by pread. Errors: os errors; io where the file ends before.
status read_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> target);
// Writes all of it, by pwrite. Errors: os errors.
status write_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<const std::byte> source);

}  // namespace penstock::cli
