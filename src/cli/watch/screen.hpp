// Full-screen mode of a terminal: the alternate screen, no cursor, and unbuffered keys. The destructor restores the terminal, even after
// Ctrl-C and SIGTERM, which common/interrupt turns into an orderly exit. Uses plain ANSI escapes for cursor home, clear and switching
// screens; nothing else is needed. One thread, one object.
#pragma once

#include <sys/ioctl.h>
#include <termios.h>

#include <chrono>
#include <string>
#include <vector>

namespace penstock::cli {

class screen {
 public:
  // Returns true if standard input and output are a terminal that supports these escapes (TERM is not "dumb").
  static bool possible();
  screen();
  screen(const screen&) = delete;
  screen& operator=(const screen&) = delete;
  ~screen();
  // Queried on each call, because the user may resize the terminal.
  [[nodiscard]] std::size_t columns() const;
  [[nodiscard]] std::size_t rows() const;
  void show(const std::vector<std::string>& lines) const;
  enum class key : unsigned char { none, up, down, enter, end, other };
  struct pressed {
    key what = key::none;
    char letter = 0;
  };
  // Waits at most this long for a key. Returns earlier without a key after a signal or a resize.
  [[nodiscard]] static pressed wait_for_key(std::chrono::milliseconds most);

 private:
  [[nodiscard]] winsize size() const;
  termios before_{};
};

}  // namespace penstock::cli
