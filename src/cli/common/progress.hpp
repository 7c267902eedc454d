// Progress on stderr when that is a terminal that can show it (TERM is not "dumb"), nothing otherwise. One thread per object.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace penstock::cli {

// From now on nothing is shown: --quiet.
void hide_progress();

// Replaces the line that was shown before by as much of this one as the terminal has columns for, made printable; an empty one removes it.
void show_status_line(std::string_view text);

// One phase of the work on something: "reading" of "model.bin", with how fast it goes and how long it will take.
class progress_bar {
 public:
  // done_bytes: how much was done before this object was made.
  progress_bar(std::string phase, std::string name, std::uint64_t total_bytes, std::uint64_t done_bytes = 0);
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar();  // removes the bar
  // Shown at once, and then at most some times a second.
  void update(std::uint64_t done_bytes);
  // For bench::stop_function, which is asked before each piece: counts the pieces, and answers whether the user has interrupted the work.
  // Refers to this object.
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
