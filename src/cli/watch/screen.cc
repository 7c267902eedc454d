#include "cli/watch/screen.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "base/printable.hpp"

namespace penstock::cli {
namespace {

void put(std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno != EINTR) return;  // the terminal is closed
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
}

extern "C" void ignore_resize(int /*signal_number*/) {}  // interrupts poll()

}  // namespace

bool screen::possible() {
  const char* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): read only
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb" && ::isatty(STDIN_FILENO) == 1 &&
         ::isatty(STDOUT_FILENO) == 1;
}

screen::screen() {
  (void)::tcgetattr(STDIN_FILENO, &before_);
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  // Ctrl-Z and Ctrl-\ would leave the terminal in this mode.
  keys.c_cc[VSUSP] = _POSIX_VDISABLE;
  keys.c_cc[VQUIT] = _POSIX_VDISABLE;
  (void)::tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  struct sigaction action {};
  action.sa_handler = ignore_resize;
  sigemptyset(&action.sa_mask);
  (void)::sigaction(SIGWINCH, &action, nullptr);
  put("\x1b[?1049h\x1b[?25l");
}

screen::~screen() {
  put("\x1b[?25h\x1b[?1049l");
  (void)::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

winsize screen::size() const {
  winsize found{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) != 0 || found.ws_col == 0 || found.ws_row == 0)
    found = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  return found;
}

std::size_t screen::columns() const { return std::max<std::size_t>(size().ws_col, 2) - 1; }
std::size_t screen::rows() const { return size().ws_row; }

void screen::show(const std::vector<std::string>& lines) const {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) text += printable_text(lines[i]) + (i + 1 < lines.size() ? "\x1b[K\r\n" : "\x1b[K");
  put(text + "\x1b[J");
}

screen::pressed screen::wait_for_key(std::chrono::milliseconds most) {
  pollfd keyboard{STDIN_FILENO, POLLIN, 0};
  if (::poll(&keyboard, 1, static_cast<int>(most.count())) <= 0) return {};
  // Reads a byte at a time, because several keys may be pending.
  const auto next = [&] {
    char byte = 0;
    return ::read(STDIN_FILENO, &byte, 1) == 1 ? byte : '\0';
  };
  const char first = next();
  if (first == '\0') return {key::end, 0};  // the terminal is closed
  if (first == '\n' || first == '\r') return {key::enter, 0};
  // An arrow key sends three bytes at once.
  if (first == '\x1b' && ::poll(&keyboard, 1, 20) > 0) {
    const char second = next();
    const char third = second == '[' || second == 'O' ? next() : '\0';
    if (third == 'A') return {key::up, 0};
    if (third == 'B') return {key::down, 0};
    return {};
  }
  return {key::other, first};
}

}  // namespace penstock::cli
