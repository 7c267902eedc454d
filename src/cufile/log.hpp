// The cuFile interface's log: lines "time pid:tid LEVEL message" in the file given in the settings, if any. Owned by the driver. Any thread
// may call wants() and write(), even in a forked child. The child logs its own process id and never waits for locks held by the parent's
// threads. open() and close() must not be called concurrently.
#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cufile/settings.hpp"
#include "penstock/status.hpp"

namespace penstock::cufile {

// Writes "penstock: text" to standard error, like print_error().
void say_on_stderr(std::string_view text) noexcept;

class log {
 public:
  log();
  ~log();
  log(const log&) = delete;
  log& operator=(const log&) = delete;

  // Starts appending to values.log_file (created with mode 0644) instead of the previous file. If no file is set or it cannot be opened,
  // nothing is logged; only this call reports the failure. Blocks. Errors: os errors; the message includes the file name.
  status open(const settings& values);
  // Stops logging. Blocks until lines in progress are written.
  void close() noexcept;

  // Cheap; call before formatting a line.
  [[nodiscard]] bool wants(log_level level) const noexcept {
    return static_cast<int>(level) <= level_.load(std::memory_order_relaxed);  // relaxed: no other data depends on it
  }

  // Writes one line if the level is wanted; control characters become '?'. Empties the file first if the line would exceed
  // values.log_max_bytes. Preserves errno. Drops a line that cannot be written.
  template <class... Args>
  void write(log_level level, fmt::format_string<Args...> format, Args&&... args) noexcept {
    if (!wants(level)) return;
    try {
      append(level, fmt::format(format, std::forward<Args>(args)...));
    } catch (...) {  // out of memory: the call matters more than its log line
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
