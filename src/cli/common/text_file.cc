#include "cli/common/text_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "cli/common/interrupt.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

// Waits for data or the end of the file. A FIFO that no writer has opened yet is not at its end.
status wait_for_text(int fd, const std::string& path) {
  std::array<pollfd, 2> watched{{{fd, POLLIN, 0}, {interrupt_descriptor(), POLLIN, 0}}};
  while (!interrupted()) {
    const int ready = ::poll(watched.data(), watched.size(), -1);
    if (ready < 0 && errno != EINTR) return status::from_errno(errno, fmt::format("wait for {}", path));
    if (ready > 0 && watched[0].revents != 0) return {};
  }
  return {errc::cancelled, fmt::format("interrupted while reading {}", path)};
}

}  // namespace

result<std::string> read_text(const std::string& path, std::uint64_t most) {
  const bool is_input = path == "-";
  // O_NONBLOCK: otherwise open(2) would wait for a writer of a FIFO and could not be interrupted.
  const owned_fd opened(is_input ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int fd = is_input ? STDIN_FILENO : opened.get();
  if (fd < 0) return status::from_errno(errno, fmt::format("open {}", path));
  std::string text;
  std::array<char, 65536> part;
  while (text.size() <= most) {
    if (status error = wait_for_text(fd, path); !error.ok()) return error;
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("read {}", path));
    if (count == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  return status(errc::invalid_argument, fmt::format("{} is larger than {}", path, format_size(most)));
}

}  // namespace penstock::cli
