// A one-line progress bar on stderr. Draws on a terminal only: in a pipe or a file it writes nothing. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

class progress_bar {
 public:
  // total_bytes 0: there is nothing to show.
  progress_bar(std::string label, std::uint64_t total_bytes);
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar();  // clear()
  void update(std::uint64_t done_bytes);
  // Removes the bar, so that a line of output can take its place.
  void clear();

 private:
  std::string label_;
  std::uint64_t total_bytes_;
  bool shown_ = false;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
};

// One line of text that the next one overwrites; on a terminal only. Empty removes it.
void show_status_line(std::string_view text);

}  // namespace penstock::cli
