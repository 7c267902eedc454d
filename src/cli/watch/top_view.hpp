// What `penstock top` shows: speeds from two looks at the same processes, their history, and the lines of a screen. Free functions; safe
// from any thread.
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
  std::vector<double> history;         // GB/s read and written, of this look and those before it, oldest first
};
std::vector<process_speed> speeds_between(const process_list& before, const process_list& now, double seconds);

// The speeds of earlier looks, by process. Forgets processes that it no longer sees.
class speed_histories {
 public:
  static constexpr std::size_t most = 120;  // looks
  // Adds the speeds of a look, and fills in the history of each.
  void add(std::vector<process_speed>& seen);

 private:
  std::map<int, std::vector<double>> by_pid_;
};

// Speeds as blocks, ▁▂▃▄▅▆▇█ (in ASCII _.-=+*#), newest last, of this many columns: the highest is the top.
std::string sparkline(std::span<const double> speeds, double top, std::size_t columns, bool has_blocks);
// A bar of this many columns, as far as value is of top; filled up with blanks.
std::string bar(double value, double top, std::size_t columns, bool has_blocks);

enum class top_order : std::uint8_t { speed, pid, oldest };
[[nodiscard]] std::string_view to_string(top_order order);
// Those that have ended come last.
void sort_by(std::vector<process_speed>& seen, top_order order);

struct top_screen {
  std::size_t columns = 80, rows = 24;
  top_order order = top_order::speed;
  int selected_pid = 0;
  bool shows_requests = false;  // of the selected process
  bool paused = false;
  bool of_those_named = false;  // the list is of processes whose numbers were given
  bool shows_ended = false;     // each in a line of its own; those that were named always are
  bool is_chosen = false;       // selected_pid: by the user
  bool has_blocks = false;      // the terminal shows block characters: its locale is UTF-8
};
// The lines of a screen, none longer than it is wide, and no more than it has.
std::vector<std::string> top_lines(const std::vector<process_speed>& seen, const std::vector<status>& problems, const top_screen& screen);
// Those of which there are lines, in the order of the list.
std::vector<const process_speed*> shown_of(const std::vector<process_speed>& seen, const top_screen& screen);
// The one that the user has chosen, as long as there is a line of it; else the first.
int selected_of(const std::vector<process_speed>& seen, const top_screen& screen);
// In a pipe: titles, a line for each process with all figures (no bars), and one for all that have ended.
std::vector<std::string> top_table(const std::vector<process_speed>& seen, bool of_those_named);
nlohmann::json to_json(const process_speed& seen);

}  // namespace penstock::cli
