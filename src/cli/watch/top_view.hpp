// The contents of `penstock top`: speeds computed from two snapshots of the same processes, their history, and the lines of the screen.
// Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "penstock/processes.hpp"

namespace penstock::cli {

struct named_speed {
  std::string name;
  double gigabytes_per_second = 0;
};

// The activity of a process between two snapshots. No speeds are known yet for a process that was not in the first one, or whose PID has
// been reused.
struct process_speed {
  process_stats now;
  double read_gigabytes_per_second = 0;
  double written_gigabytes_per_second = 0;
  std::vector<named_speed> by_path;    // paths that moved bytes
  std::vector<named_speed> by_device;  // devices that moved bytes
  double half_below_us = 0;            // median time of the pieces of this interval
  double most_below_us = 0;            // 99th percentile
  std::uint64_t fallbacks = 0;         // in this interval
  std::vector<double> history;         // GB/s read and written in this snapshot and earlier ones, oldest first
};
std::vector<process_speed> speeds_between(const process_list& before, const process_list& now, double seconds);

// Earlier speeds by process. Drops processes that no longer appear.
class speed_histories {
 public:
  static constexpr std::size_t most = 120;  // snapshots
  // Adds the speeds of a snapshot and fills in the history of each process.
  void add(std::vector<process_speed>& seen);

 private:
  std::map<int, std::vector<double>> by_pid_;
};

// Returns this many columns of speeds as blocks, ▁▂▃▄▅▆▇█ (in ASCII _.-=+*#), newest last; top is the speed of a full block.
std::string sparkline(std::span<const double> speeds, double top, std::size_t columns, bool has_blocks);
// Returns a bar of this many columns, filled in proportion to value / top and padded with blanks.
std::string bar(double value, double top, std::size_t columns, bool has_blocks);

enum class top_order : std::uint8_t { speed, pid, oldest };
[[nodiscard]] std::string_view to_string(top_order order);
// Sorts the processes; those that have exited come last.
void sort_by(std::vector<process_speed>& seen, top_order order);

struct top_screen {
  std::size_t columns = 80, rows = 24;
  top_order order = top_order::speed;
  int selected_pid = 0;
  bool shows_requests = false;  // show the requests of the selected process
  bool paused = false;
  bool of_those_named = false;  // the user selected processes by PID
  bool shows_ended = false;     // show each process that has exited on its own line; selected processes always have one
  bool is_chosen = false;       // the user chose selected_pid
  bool has_blocks = false;      // the terminal can show block characters: its locale is UTF-8
};
// Returns the lines of a screen, which fit its width and height.
std::vector<std::string> top_lines(const std::vector<process_speed>& seen, const std::vector<status>& problems, const top_screen& screen);
// Returns the processes that have a line, in the order of the list.
std::vector<const process_speed*> shown_of(const std::vector<process_speed>& seen, const top_screen& screen);
// Returns the process that the user chose if it still has a line; otherwise the first one.
int selected_of(const std::vector<process_speed>& seen, const top_screen& screen);
// Returns the output for a pipe: titles, one line with all figures (no bars) per process, and one line for all processes that have exited.
std::vector<std::string> top_table(const std::vector<process_speed>& seen, bool of_those_named);
nlohmann::json to_json(const process_speed& seen);

}  // namespace penstock::cli
