// Progress on stderr if stderr is a terminal that can show it (TERM is not "dumb"); otherwise nothing. One thread per object.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace penstock::cli {

// Disables progress, for --quiet.
void hide_progress();

// Replaces the status line with this text, made printable and cut to the width of the terminal. An empty text removes it.
void show_status_line(std::string_view text);

// One phase of the work, such as "reading" "model.bin", with its speed and the remaining time.
class progress_bar {
 public:
  // done_bytes: bytes already transferred at the start.
  progress_bar(std::string phase, std::string name, std::uint64_t total_bytes, std::uint64_t done_bytes = 0);
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar();  // removes the bar
  // Shows the bar on the first call, then at most a few times a second.
  void update(std::uint64_t done_bytes);
  // Returns a bench::stop_function to call before each piece: it counts the pieces and returns true once the user has interrupted the work.
  // It refers to this object.
  std::function<bool()> counting(std::uint64_t piece_bytes);

 private:
  using clock = std::chrono::steady_clock;
  std::string phase_;
  std::string name_;
  std::uint64_t total_bytes_;
  std::uint64_t first_byte_;
  clock::time_point start_ = clock::now();
  clock::time_point shown_at_{};
  bool shown_ = false;
};

}  // namespace penstock::cli
