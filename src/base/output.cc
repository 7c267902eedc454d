#include "base/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/no_pipe_signal.hpp"

namespace penstock {

namespace {

// If a program starts without standard error, descriptor 2 may belong to some other file that it opens.
const bool had_standard_error = ::fcntl(STDERR_FILENO, F_GETFD) >= 0;

// exec() closes descriptors that have FD_CLOEXEC, so standard error never has the flag when a program starts, and dup2() never sets it.
bool has_standard_error() noexcept {
  const int flags = ::fcntl(STDERR_FILENO, F_GETFD);
  return had_standard_error && flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

}  // namespace

void print_error(std::string_view text) noexcept {
  const int before = errno;
  if (has_standard_error()) {
    const no_pipe_signal quiet;
    while (!text.empty()) {
      const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
      if (count > 0) {
        text.remove_prefix(static_cast<std::size_t>(count));
      } else if (count < 0 && errno == EAGAIN) {
        pollfd room{STDERR_FILENO, POLLOUT, 0};
        ::poll(&room, 1, -1);
      } else if (count == 0 || errno != EINTR) {
        break;
      }
    }
  }
  errno = before;
}

output_failure::output_failure(int error_number)
    : std::runtime_error(std::string("cannot write to standard output: ") + std::strerror(error_number)) {
}  // NOLINT(concurrency-mt-unsafe)

void print_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw output_failure(errno);
}

void flush_output() {
  if (std::fflush(stdout) != 0) throw output_failure(errno);
}

}  // namespace penstock
