// A file descriptor of the kernel interface, closed by the destructor. One thread per object.
#pragma once

#include <string>
#include <utility>

#include "penstock/status.hpp"
#include "sys/kernel.hpp"

namespace penstock::bench {

class open_file {
 public:
  static result<open_file> open(sys::kernel& kernel, const std::string& path, int flags) {
    auto fd = kernel.open(path, flags, 0);
    if (!fd) return fd.error();
    return open_file(kernel, *fd);
  }
  open_file(open_file&& other) noexcept : kernel_(other.kernel_), fd_(std::exchange(other.fd_, -1)) {}
  open_file& operator=(open_file&&) = delete;
  ~open_file() {
    // The file is only read, or overwritten with data that nobody keeps, so an error of close does not affect the measurement.
    if (fd_ >= 0) static_cast<void>(kernel_->close(fd_).ok());
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  open_file(sys::kernel& kernel, int fd) : kernel_(&kernel), fd_(fd) {}
  sys::kernel* kernel_;
  int fd_;
};

}  // namespace penstock::bench
