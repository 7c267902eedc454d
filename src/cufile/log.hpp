// The log of the cuFile interface: lines "time pid:tid LEVEL message" in the file that the settings name, if they name one. Owned by the
// driver. Any thread may call wants() and write(), also in a forked child, which logs its own process id and never waits for locks of the
// parent's threads. open() and close() need one thread at a time.
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

  // Starts appending to values.log_file (created 0644) instead of the previous file. Without a file, or if it cannot be opened, the log
  // stays silent; only this call reports the failure. Blocks. Errors: os errors, naming the file.
  status open(const settings& values);
  // Silences the log. Blocks until lines under way are written.
  void close() noexcept;

  // Cheap; call it before preparing a line.
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
