// What `penstock top` shows: speeds from two looks at the same processes, and the lines of a screen. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "penstock/processes.hpp"

namespace penstock::cli {

struct named_speed {
  std::string name;
  double gigabytes_per_second = 0;
};

// A process between two looks. Of one that was not there before, or whose number another process has now, nothing is known yet.
struct process_speed {
  process_stats now;
  double read_gigabytes_per_second = 0;
  double written_gigabytes_per_second = 0;
  std::vector<named_speed> by_path;    // those that moved something
  std::vector<named_speed> by_device;  // likewise
  double half_below_us = 0;            // of the pieces of this time
  double most_below_us = 0;            // 99% of them
  std::uint64_t fallbacks = 0;         // in this time
};
std::vector<process_speed> speeds_between(const process_list& before, const process_list& now, double seconds);

enum class top_order : std::uint8_t { speed, pid, oldest };
[[nodiscard]] std::string_view to_string(top_order order);
void sort_by(std::vector<process_speed>& seen, top_order order);

struct top_screen {
  std::size_t columns = 80, rows = 24;
  top_order order = top_order::speed;
  int selected_pid = 0;
  bool shows_requests = false;  // of the selected process
  bool paused = false;
  bool of_those_named = false;  // the list is of processes whose numbers were given
};
// The lines of a screen, none longer than it is wide, and no more than it has.
std::vector<std::string> top_lines(const std::vector<process_speed>& seen, const std::vector<status>& problems, const top_screen& screen);
// In a pipe: "1234  train.py  3.21 GB/s read, 0.00 GB/s written, staged 3.21, 2 under way, the oldest for 0.1 s, ...".
std::string top_line(const process_speed& seen);
nlohmann::json to_json(const process_speed& seen);

}  // namespace penstock::cli
