// The whole of a terminal: its other screen, without a cursor, with keys as they are pressed. As it was before once this is gone, also
// after Ctrl-C and SIGTERM, which common/interrupt turns into an orderly end. Plain ANSI escapes: all that is needed is to go home, to
// clear and to change screens. One thread, one object.
#pragma once

#include <sys/ioctl.h>
#include <termios.h>

#include <chrono>
#include <string>
#include <vector>

namespace penstock::cli {

class screen {
 public:
  // Whether standard input and output are a terminal that understands it: not TERM=dumb.
  static bool possible();
  screen();
  screen(const screen&) = delete;
  screen& operator=(const screen&) = delete;
  ~screen();
  // As of now: the user may resize it.
  [[nodiscard]] std::size_t columns() const;
  [[nodiscard]] std::size_t rows() const;
  void show(const std::vector<std::string>& lines) const;
  enum class key : unsigned char { none, up, down, enter, end, other };
  struct pressed {
    key what = key::none;
    char letter = 0;
  };
  // Waits so long for a key; returns earlier, with none, after a signal or a change of size.
  [[nodiscard]] static pressed wait_for_key(std::chrono::milliseconds most);

 private:
  [[nodiscard]] winsize size() const;
  termios before_{};
};

}  // namespace penstock::cli
