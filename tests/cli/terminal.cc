#include "cli/terminal.hpp"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace penstock::cli_test {

std::string run_in_terminal(const std::vector<std::string>& arguments, const terminal_kind& kind) {
  std::vector<std::string> words{PENSTOCK_CLI_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = kind.columns;
  int fd = -1;
  const pid_t child = ::forkpty(&fd, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("no terminal for the child");
  if (child == 0) {
    kind.term.empty() ? ::unsetenv("TERM") : ::setenv("TERM", kind.term.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;  // EIO: the child has let go of its end
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::close(fd);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

}  // namespace penstock::cli_test
