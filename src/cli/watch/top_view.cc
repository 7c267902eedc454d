#include "cli/watch/top_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

#include "base/printable.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/watch/observed.hpp"

namespace penstock::cli {
namespace {

// Counters that decreased belong to another process.
std::uint64_t more_than(std::uint64_t now, std::uint64_t before) { return now - std::min(now, before); }

double speed_of(std::uint64_t bytes, double seconds) { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }

template <class Entry>
Entry entry_named(const std::vector<Entry>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Entry& each) { return each.name == name; });
  return found == all.end() ? Entry{} : *found;
}

process_speed speed_between(const process_stats& before, const process_stats& now, double seconds) {
  process_speed told;
  told.now = now;
  told.read_gigabytes_per_second = speed_of(more_than(now.stats.read_bytes, before.stats.read_bytes), seconds);
  told.written_gigabytes_per_second = speed_of(more_than(now.stats.written_bytes, before.stats.written_bytes), seconds);
  std::array<std::uint64_t, 24> latencies{};
  for (const auto& path : now.stats.by_path) {
    const auto earlier = entry_named(before.stats.by_path, path.name);
    if (const auto bytes = more_than(path.bytes, earlier.bytes); bytes > 0) told.by_path.push_back({path.name, speed_of(bytes, seconds)});
    for (std::size_t i = 0; i < latencies.size(); ++i) latencies[i] += more_than(path.latency_histogram[i], earlier.latency_histogram[i]);
    told.fallbacks += more_than(path.fallbacks, earlier.fallbacks);
  }
  for (const auto& device : now.stats.by_device) {
    const auto earlier = entry_named(before.stats.by_device, device.name);
    const auto bytes = more_than(device.read_bytes, earlier.read_bytes) + more_than(device.written_bytes, earlier.written_bytes);
    if (bytes > 0) told.by_device.push_back({device.name.empty() ? "unknown" : device.name, speed_of(bytes, seconds)});
  }
  told.half_below_us = percentile_us(latencies, 0.5);
  told.most_below_us = percentile_us(latencies, 0.99);
  return told;
}

std::size_t under_way(const process_speed& seen) {
  return seen.now.requests ? seen.now.requests->size() + seen.now.requests_not_shown : std::size_t{0};
}

double oldest_seconds(const process_speed& seen) {
  double oldest = 0;
  if (!seen.now.requests) return oldest;
  for (const auto& each : *seen.now.requests) oldest = std::max(oldest, age_seconds(each));
  return oldest;
}

std::string list_of(const std::vector<named_speed>& all) {
  std::string text;
  for (const auto& each : all) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : " ", each.name, each.gigabytes_per_second);
  return text;
}

// Never cuts within a multi-byte character.
std::string cut(std::string text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) == 0x80U) continue;
    if (seen++ == columns) {
      text.resize(i);
      break;
    }
  }
  return text;
}

std::string why_of(const process_stats& seen) {
  std::string text;
  for (const auto& path : seen.stats.by_path) {
    if (path.fallbacks > 0)
      text += fmt::format("  {} fallbacks of {}, the latest: {}\n", path.fallbacks, path.name, printable_text(path.last_fallback));
  }
  return text;
}

void add_lines(std::vector<std::string>& to, std::string_view text) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    to.emplace_back(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

std::string notes_of(const process_speed& seen) {
  return joined({seen.now.ended ? "exited" : list_of(seen.by_path), advice_codes(seen.now.stats)});
}

// Counts processes of other versions instead of listing them, because there may be one per core.
void add_problems(std::vector<std::string>& to, const std::vector<status>& problems) {
  const auto is_other = [](const status& each) { return each.code() == errc::unsupported; };
  const auto others = std::count_if(problems.begin(), problems.end(), is_other);
  if (others > 1) {
    to.push_back(fmt::format("{} processes run other versions of Penstock: `penstock stats` lists them", others));
  }
  for (const auto& each : problems) {
    if (others <= 1 || !is_other(each)) to.push_back(printable_text(std::string(each.message())));
  }
}

// Adds the text in lines that fit the screen if its words allow it. All but the first are indented.
void add_wrapped(std::vector<std::string>& to, std::string_view text, std::size_t columns) {
  constexpr std::string_view indent = "  ";
  for (std::string_view before; !text.empty(); before = indent) {
    const auto room = columns - std::min(columns, before.size());
    auto end = text.size() <= room ? text.size() : text.rfind(' ', room);
    if (end == std::string_view::npos) end = text.find(' ');
    to.push_back(fmt::format("{}{}", before, text.substr(0, end)));
    text.remove_prefix(std::min(text.size(), end == std::string_view::npos ? end : end + 1));
  }
}

enum class drawn : std::uint8_t { text, bar, history };

struct top_column {
  std::string_view title;
  std::size_t width;
  bool is_left;   // aligned
  unsigned keep;  // columns with higher values are kept longer on a narrow screen
  std::string (*text)(const process_speed& of);
  drawn as = drawn::text;
};

std::string number_of(double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); }

double total_of(const process_speed& of) { return of.read_gigabytes_per_second + of.written_gigabytes_per_second; }

// The last column takes the remaining width.
constexpr std::array<top_column, 12> top_columns{{
    {"PID", 8, false, 11, [](const process_speed& of) { return std::to_string(of.now.pid); }},
    {"PROGRAM", 14, true, 10, [](const process_speed& of) { return printable_text(of.now.program); }},
    {"RD GB/s", 7, false, 9, [](const process_speed& of) { return number_of(of.read_gigabytes_per_second, 2); }},
    {"WR GB/s", 7, false, 8, [](const process_speed& of) { return number_of(of.written_gigabytes_per_second, 2); }},
    {"SPEED", 8, true, 5, nullptr, drawn::bar},
    {"HISTORY", 10, true, 6, nullptr, drawn::history},
    {"REQS", 5, false, 4,
     [](const process_speed& of) { return of.now.ended      ? "-"
                                          : of.now.requests ? std::to_string(under_way(of))
                                                            : "?"; }},
    {"OLDEST", 7, false, 3, [](const process_speed& of) { return of.now.ended ? "-" : number_of(oldest_seconds(of), 1) + "s"; }},
    {"P50 us", 7, false, 2, [](const process_speed& of) { return number_of(of.half_below_us, 0); }},
    {"P99 us", 7, false, 1, [](const process_speed& of) { return number_of(of.most_below_us, 0); }},
    {"FALLB", 6, false, 0, [](const process_speed& of) { return std::to_string(of.fallbacks); }},
    {"PATHS", 11, true, 7, [](const process_speed& of) { return notes_of(of); }},
}};

using top_layout = std::vector<top_column>;

std::size_t layout_width(const top_layout& columns) {
  std::size_t sum = 1;  // width of the mark of the selected line
  for (const auto& each : columns) sum += each.width + 1;
  return sum;
}

// Returns the columns that fit. Rarely used columns make room for notes of that width; the history takes half of the rest.
top_layout columns_for(std::size_t room, std::size_t notes_width) {
  constexpr unsigned rare = 2;
  top_layout all(top_columns.begin(), top_columns.end());
  const auto least = [&] { return std::ranges::min_element(all, {}, &top_column::keep); };
  const auto spare = [&] { return room - std::min(room, layout_width(all)); };
  while (all.size() > 1 && layout_width(all) > room) all.erase(least());
  if (all.back().title == top_columns.back().title) {
    while (all.back().width + spare() < notes_width && least()->keep <= rare) all.erase(least());
    all.back().width += std::min(spare(), notes_width - std::min(notes_width, all.back().width));
  }
  const auto history = std::ranges::find(all, drawn::history, &top_column::as);
  if (history != all.end()) history->width = std::min(speed_histories::most, history->width + spare() / 2);
  return all;
}

// Returns the width of the longest note.
std::size_t notes_width_of(const std::vector<const process_speed*>& shown) {
  std::size_t widest = 0;
  for (const auto* each : shown) widest = std::max(widest, width_of(notes_of(*each)));
  return widest;
}

// Returns all columns except bars and history, with room for long names.
top_layout columns_of_text() {
  constexpr std::size_t name_width = 18;
  top_layout all;
  std::ranges::copy_if(top_columns, std::back_inserter(all), [](const top_column& each) { return each.as == drawn::text; });
  for (auto& each : all) {
    if (each.is_left) each.width = std::max(each.width, name_width);
  }
  return all;
}

// Pads all columns except the last.
std::string table_line(const top_layout& columns, std::string_view mark, const std::function<std::string(const top_column&)>& text_in) {
  std::string line(mark);
  for (const auto& each : columns) {
    const auto text = text_in(each);
    const bool is_last = &each == &columns.back() && each.is_left;
    const auto shown = is_last ? text : cut(text, std::max(each.width, each.is_left ? each.width : text.size()));
    const auto blanks = std::string(each.width - std::min(each.width, width_of(shown)), ' ');
    line += " " + (each.is_left ? is_last ? shown : shown + blanks : blanks + shown);
  }
  return line;
}

// The speeds at which bars and histories are full.
struct top_scale {
  double bar = 0, history = 0;
  bool has_blocks = false;
};

top_scale scale_of(const std::vector<const process_speed*>& shown, const top_screen& screen) {
  top_scale scale{.has_blocks = screen.has_blocks};
  for (const auto* each : shown) {
    scale.bar = std::max(scale.bar, total_of(*each));
    for (const double speed : each->history) scale.history = std::max(scale.history, speed);
  }
  return scale;
}

std::string list_line(const top_layout& columns, const process_speed& of, bool selected, const top_scale& scale) {
  return table_line(columns, selected ? ">" : " ", [&](const top_column& each) {
    if (each.as == drawn::bar) return bar(total_of(of), scale.bar, each.width, scale.has_blocks);
    if (each.as == drawn::history) return sparkline(of.history, scale.history, each.width, scale.has_blocks);
    return each.text(of);
  });
}

// Ends with the number of columns that did not fit.
std::string title_line(const top_layout& columns, std::size_t room) {
  auto line = table_line(columns, " ", [](const top_column& each) { return std::string(each.title); });
  const auto dropped = top_columns.size() - columns.size();
  if (dropped == 0 || room == 0) return line;
  const auto sign = fmt::format(" +{}", dropped);
  if (line.size() + sign.size() <= room) line += std::string(room - sign.size() - line.size(), ' ') + sign;
  return line;
}

// Adds as many lines as fit above the lower part, but at least half of the screen. The selected process is always among them.
void add_list(std::vector<std::string>& to, const std::vector<const process_speed*>& shown, const top_screen& screen, std::size_t below) {
  const auto columns = columns_for(screen.columns, notes_width_of(shown));
  const auto scale = scale_of(shown, screen);
  const auto rows = screen.rows - std::min(screen.rows, to.size());
  const auto lines = std::min(shown.size(), std::max<std::size_t>({rows - std::min(rows, below), rows / 2, 1}));
  const auto is_selected = [&](const process_speed* each) { return each->now.pid == screen.selected_pid; };
  const auto selected = static_cast<std::size_t>(std::ranges::find_if(shown, is_selected) - shown.begin());
  const auto first = selected < shown.size() && selected >= lines ? selected + 1 - lines : 0;
  for (std::size_t i = first; i < first + lines; ++i) to.push_back(list_line(columns, *shown[i], i == selected, scale));
}

// Returns the current settings and as many key hints as fit.
std::string head_line(std::size_t processes, bool any_ended, const top_screen& screen) {
  auto line = fmt::format("penstock top: {}, by {}{} ", counted(processes, "process", "processes"), to_string(screen.order),
                          screen.paused ? ", PAUSED" : "");
  for (const std::string_view key : {"q quit", "Enter requests", any_ended ? "d exited" : "", "s sort", "p pause", "j/k select"}) {
    if (!key.empty() && line.size() + 2 + key.size() <= screen.columns) line += fmt::format("  {}", key);
  }
  return line;
}

// Adds the details of the selected process.
void add_details(std::vector<std::string>& to, const process_speed& of, const top_screen& screen) {
  to.push_back(fmt::format("process {}: GB/s by memory: {}", of.now.pid, of.by_device.empty() ? "none" : list_of(of.by_device)));
  for (const auto& channel : of.now.stats.by_channel)
    add_wrapped(to, fmt::format("pipes by {}: {}", printable_text(channel.name), describe(channel)), screen.columns);
  if (of.now.stats.usage.remote_requests > 0) add_wrapped(to, "servers: " + describe_servers(of.now.stats.usage), screen.columns);
  add_lines(to, why_of(of.now));
  for (const auto& given : advise(of.now.stats)) add_wrapped(to, "advice: " + describe(given), screen.columns);
  if (!screen.shows_requests) return;
  to.emplace_back("requests in flight");
  if (!of.now.requests) {
    to.emplace_back("  the process does not respond");
    return;
  }
  for (const auto& request : *of.now.requests) to.push_back("  " + describe(request));
  if (of.now.requests->empty()) to.emplace_back("  none");
}

}  // namespace

std::vector<process_speed> speeds_between(const process_list& before, const process_list& now, double seconds) {
  std::vector<process_speed> told;
  for (const auto& process : now.processes) {
    const auto same = [&](const process_stats& each) { return each.pid == process.pid && each.program == process.program; };
    const auto earlier = std::find_if(before.processes.begin(), before.processes.end(), same);
    told.push_back(speed_between(earlier == before.processes.end() ? process : *earlier, process, seconds));
  }
  return told;
}

void speed_histories::add(std::vector<process_speed>& seen) {
  std::map<int, std::vector<double>> kept;
  for (auto& each : seen) {
    auto& speeds = kept[each.now.pid] = std::move(by_pid_[each.now.pid]);
    if (speeds.size() == most) speeds.erase(speeds.begin());
    speeds.push_back(total_of(each));
    each.history = speeds;
  }
  by_pid_ = std::move(kept);
}

std::string sparkline(std::span<const double> speeds, double top, std::size_t columns, bool has_blocks) {
  constexpr std::array<std::string_view, 8> blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<std::string_view, 8> letters{"_", ".", ":", "-", "=", "+", "*", "#"};
  const auto shown = speeds.last(std::min(speeds.size(), columns));
  std::string line(columns - shown.size(), ' ');
  for (const double each : shown) {
    const double part = top > 0 ? std::clamp(each / top, 0.0, 1.0) : 0;
    const auto level = static_cast<std::size_t>(std::lround(part * static_cast<double>(blocks.size() - 1)));
    line += has_blocks ? blocks[level] : letters[level];
  }
  return line;
}

std::string bar(double value, double top, std::size_t columns, bool has_blocks) {
  constexpr std::array<std::string_view, 8> ends{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double part = top > 0 ? std::clamp(value / top, 0.0, 1.0) : 0;
  const auto eighths = static_cast<std::size_t>(std::lround(part * static_cast<double>(columns * ends.size())));
  const auto whole = has_blocks ? eighths / ends.size() : (eighths + ends.size() / 2) / ends.size();
  std::string line;
  for (std::size_t i = 0; i < whole; ++i) line += has_blocks ? "█" : "#";
  if (has_blocks) line += ends[eighths % ends.size()];
  return line + std::string(columns - width_of(line), ' ');
}

std::string_view to_string(top_order order) {
  return order == top_order::speed ? "speed" : order == top_order::pid ? "pid" : "oldest request";
}

void sort_by(std::vector<process_speed>& seen, top_order order) {
  const auto weight = [&](const process_speed& each) {
    if (order == top_order::oldest) return -oldest_seconds(each);
    return order == top_order::pid ? 0.0 : -total_of(each);
  };
  std::stable_sort(seen.begin(), seen.end(), [&](const auto& one, const auto& other) {
    return std::tuple(one.now.ended, weight(one), one.now.pid) < std::tuple(other.now.ended, weight(other), other.now.pid);
  });
}

std::vector<const process_speed*> shown_of(const std::vector<process_speed>& seen, const top_screen& screen) {
  std::vector<const process_speed*> shown;
  for (const auto& each : seen) {
    if (!each.now.ended || screen.shows_ended || screen.of_those_named) shown.push_back(&each);
  }
  return shown;
}

std::vector<std::string> top_lines(const std::vector<process_speed>& seen, const std::vector<status>& problems, const top_screen& screen) {
  const auto shown = shown_of(seen, screen);
  std::vector<int> hidden;
  for (const auto& each : seen) {
    if (each.now.ended && !screen.shows_ended && !screen.of_those_named) hidden.push_back(each.now.pid);
  }
  const bool any_ended = std::ranges::any_of(seen, [](const process_speed& each) { return each.now.ended; });
  std::vector<std::string> lines{head_line(shown.size(), any_ended, screen),
                                 title_line(columns_for(screen.columns, notes_width_of(shown)), screen.columns)};
  std::vector<std::string> below;
  if (!hidden.empty()) below.push_back(fmt::format("  {} exited without closing; d shows them", hidden.size()));
  for (const auto* each : shown) {
    if (each->now.pid == screen.selected_pid) add_details(below, *each, screen);
  }
  add_problems(below, problems);
  if (shown.empty() && problems.empty()) below.insert(below.begin(), fmt::format("  {}", no_processes(screen.of_those_named)));
  add_list(lines, shown, screen, below.size());
  lines.insert(lines.end(), below.begin(), below.end());
  if (lines.size() > screen.rows) lines.resize(screen.rows);
  for (auto& line : lines) line = cut(std::move(line), screen.columns);
  return lines;
}

int selected_of(const std::vector<process_speed>& seen, const top_screen& screen) {
  const auto shown = shown_of(seen, screen);
  const auto is_selected = [&](const process_speed* each) { return each->now.pid == screen.selected_pid; };
  const bool stays = screen.is_chosen && std::ranges::any_of(shown, is_selected);
  return stays ? screen.selected_pid : shown.empty() ? 0 : shown.front()->now.pid;
}

std::vector<std::string> top_table(const std::vector<process_speed>& seen, bool of_those_named) {
  const auto shown = shown_of(seen, {.of_those_named = of_those_named});
  const auto columns = columns_of_text();
  std::vector<std::string> lines;
  if (!shown.empty()) lines.push_back(title_line(columns, 0));
  for (const auto* each : shown) lines.push_back(list_line(columns, *each, false, {}));
  if (shown.empty()) lines.emplace_back(no_processes(of_those_named));
  std::vector<int> hidden;
  for (const auto& each : seen) {
    if (each.now.ended && !of_those_named) hidden.push_back(each.now.pid);
  }
  if (!hidden.empty()) lines.push_back(ended_line(hidden, "`penstock stats -p PID` shows the last figures of one"));
  return lines;
}

nlohmann::json to_json(const process_speed& seen) {
  auto document = to_json(seen.now);
  document["read_gigabytes_per_second"] = seen.read_gigabytes_per_second;
  document["written_gigabytes_per_second"] = seen.written_gigabytes_per_second;
  for (const auto& each : seen.by_path) document["gigabytes_per_second_by_path"][each.name] = each.gigabytes_per_second;
  for (const auto& each : seen.by_device) document["gigabytes_per_second_by_device"][each.name] = each.gigabytes_per_second;
  document["half_below_us"] = seen.half_below_us;
  document["most_below_us"] = seen.most_below_us;
  document["fallbacks_since_last"] = seen.fallbacks;
  return document;
}

}  // namespace penstock::cli
