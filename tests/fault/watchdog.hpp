// Turns a hang into a failure that says where: the process aborts with the name of the case when the time is over. The time is generous,
// since it does not check speed. One at a time, on the main thread: the library's threads block all signals.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

namespace penstock::testing {

class watchdog {
 public:
  explicit watchdog(std::string_view what) {
    const std::string text = "\nwatchdog: hangs: " + std::string(what) + "\n";
    length_ = text.copy(text_, sizeof text_);
    struct sigaction action {};
    action.sa_handler = &watchdog::bark;
    sigaction(SIGALRM, &action, nullptr);
    alarm(seconds);
  }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() { alarm(0); }

 private:
  static constexpr unsigned seconds = 150;

  static void bark(int /*signal*/) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text_, length_);
    std::abort();
  }

  static inline char text_[512];
  static inline std::size_t length_ = 0;
};

}  // namespace penstock::testing
