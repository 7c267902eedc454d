// The log of the cuFile face: lines "time pid:tid LEVEL message" in the file that the settings name, and nothing where they name
// none. Owned by the driver. wants() and write() may be called from any thread, also in a forked child, which writes under its own
// number and is never held up by what the parent's threads were doing; open() and close() by one thread at a time.
#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cufile/settings.hpp"
#include "penstock/status.hpp"

namespace penstock::cufile {

// Writes "penstock: text" to standard error, as print_error() does.
void say_on_stderr(std::string_view text) noexcept;

class log {
 public:
  log();
  ~log();
  log(const log&) = delete;
  log& operator=(const log&) = delete;

  // Starts to append to values.log_file (created 0644), in place of what was open. With no such file, or one that cannot be opened,
  // the log stays silent; the latter is told here and nowhere else: os errors, naming the file. Blocks.
  status open(const settings& values);
  // Silent from here on. Blocks until lines under way are written.
  void close() noexcept;

  // Cheap: ask before gathering what a line needs.
  [[nodiscard]] bool wants(log_level level) const noexcept {
    return static_cast<int>(level) <= level_.load(std::memory_order_relaxed);  // relaxed: nothing else is read on its account
  }

  // Writes one line if it is wanted; control characters become '?'. The file is emptied first where the line would take it past
  // values.log_max_bytes. Leaves errno alone. A line that cannot be written is lost.
  template <class... Args>
  void write(log_level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (!wants(level)) return;
    try {
      append(level, fmt::format(format, std::forward<Args>(args)...));
    } catch (...) {  // out of memory: what is being logged matters more than the log
    }
  }

 private:
  struct sink;

  static constexpr int silent = -1;

  sink& own_sink();
  void append(log_level level, std::string_view message);

  std::atomic<int> level_{silent};
  std::atomic<sink*> sink_;  // replaced only in a forked child
};

}  // namespace penstock::cufile
