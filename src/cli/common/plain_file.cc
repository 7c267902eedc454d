#include "cli/common/plain_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace penstock::cli {

owned_fd::owned_fd(owned_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
owned_fd& owned_fd::operator=(owned_fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
owned_fd::~owned_fd() {
  if (fd_ >= 0) ::close(fd_);
}

status owned_fd::close(const std::string& path) {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0) return status::from_errno(errno, fmt::format("close {}", path));
  return {};
}

status read_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> target) {
  while (!target.empty()) {
    const ssize_t count = ::pread(fd, target.data(), target.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("read {} at {} of {}", target.size(), offset, path));
    if (count == 0) return {errc::io, fmt::format("{} ends at {}, {} bytes before the end of the read", path, offset, target.size())};
    target = target.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

status write_plainly(int fd, const std::string& path, std::uint64_t offset, std::span<const std::byte> source) {
  while (!source.empty()) {
    const ssize_t count = ::pwrite(fd, source.data(), source.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("write {} at {} of {}", source.size(), offset, path));
    source = source.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

}  // namespace penstock::cli
