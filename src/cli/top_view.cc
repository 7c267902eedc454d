#include "cli/top_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/observed.hpp"

namespace penstock::cli {
namespace {

// Counters that became less are another process's.
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

// Never within a character of several bytes.
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
      text += fmt::format("  {} fallbacks of {}, the latest: {}\n", path.fallbacks, path.name, printable(path.last_fallback));
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

std::string last_column(const process_speed& seen) {
  const auto text = (seen.now.ended ? "ended without closing" : list_of(seen.by_path)) + advice_codes(seen.now.stats);
  return text.starts_with(", ") ? text.substr(2) : text;
}

// Processes of other versions are counted, since there may be one for each core.
void add_problems(std::vector<std::string>& to, const std::vector<status>& problems) {
  const auto is_other = [](const status& each) { return each.code() == errc::unsupported; };
  const auto others = std::count_if(problems.begin(), problems.end(), is_other);
  if (others > 1) {
    to.push_back(fmt::format("{} processes run other versions of Penstock: `penstock stats` names them", others));
  }
  for (const auto& each : problems) {
    if (others <= 1 || !is_other(each)) to.push_back(printable(each.message()));
  }
}

// In lines that are no longer than the screen is wide, where words allow it; all but the first are indented.
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

std::string list_line(const process_speed& of, bool selected) {
  const std::string requests = of.now.requests ? std::to_string(under_way(of)) : "?";
  return fmt::format("{} {:>8} {:<18.18} {:>7.2f} {:>7.2f} {:>5} {:>6.1f}s {:>8.0f} {:>8.0f} {:>6}  {}", selected ? '>' : ' ', of.now.pid,
                     printable(of.now.program), of.read_gigabytes_per_second, of.written_gigabytes_per_second, requests, oldest_seconds(of),
                     of.half_below_us, of.most_below_us, of.fallbacks, last_column(of));
}

// As many lines as leave room for what stands below, but at least half of the screen; the selected one is among them.
void add_list(std::vector<std::string>& to, const std::vector<process_speed>& seen, const top_screen& screen, std::size_t below) {
  const auto rows = screen.rows - std::min(screen.rows, to.size());
  const auto shown = std::min(seen.size(), std::max<std::size_t>({rows - std::min(rows, below), rows / 2, 1}));
  const auto is_selected = [&](const process_speed& each) { return each.now.pid == screen.selected_pid; };
  const auto selected = static_cast<std::size_t>(std::find_if(seen.begin(), seen.end(), is_selected) - seen.begin());
  const auto first = selected < seen.size() && selected >= shown ? selected + 1 - shown : 0;
  for (std::size_t i = first; i < first + shown; ++i) to.push_back(list_line(seen[i], i == selected));
}

// Of the process that is selected.
void add_details(std::vector<std::string>& to, const process_speed& of, const top_screen& screen) {
  to.push_back(fmt::format("process {}: GB/s by memory: {}", of.now.pid, of.by_device.empty() ? "none" : list_of(of.by_device)));
  add_lines(to, why_of(of.now));
  for (const auto& given : advise(of.now.stats)) add_wrapped(to, "advice: " + describe(given), screen.columns);
  if (!screen.shows_requests) return;
  to.emplace_back("requests under way");
  if (!of.now.requests) {
    to.emplace_back("  the process does not answer");
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

std::string_view to_string(top_order order) {
  return order == top_order::speed ? "speed" : order == top_order::pid ? "pid" : "oldest request";
}

void sort_by(std::vector<process_speed>& seen, top_order order) {
  const auto weight = [&](const process_speed& each) {
    if (order == top_order::oldest) return -oldest_seconds(each);
    return order == top_order::pid ? 0.0 : -(each.read_gigabytes_per_second + each.written_gigabytes_per_second);
  };
  std::stable_sort(seen.begin(), seen.end(), [&](const auto& one, const auto& other) {
    return std::pair(weight(one), one.now.pid) < std::pair(weight(other), other.now.pid);
  });
}

std::vector<std::string> top_lines(const std::vector<process_speed>& seen, const std::vector<status>& problems, const top_screen& screen) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("penstock top: {} processes, by {}{}   q quit  s sort  p pause  j/k select  Enter requests", seen.size(),
                              to_string(screen.order), screen.paused ? ", PAUSED" : ""));
  lines.push_back(fmt::format("  {:>8} {:<18} {:>7} {:>7} {:>5} {:>7} {:>8} {:>8} {:>6}  {}", "PID", "PROGRAM", "RD GB/s", "WR GB/s",
                              "REQS", "OLDEST", "P50 us", "P99 us", "FALLB", "PATHS"));
  std::vector<std::string> below;
  for (const auto& each : seen) {
    if (each.now.pid == screen.selected_pid) add_details(below, each, screen);
  }
  add_problems(below, problems);
  if (seen.empty() && problems.empty()) below.push_back(fmt::format("  {}", no_processes(screen.of_those_named)));
  add_list(lines, seen, screen, below.size());
  lines.insert(lines.end(), below.begin(), below.end());
  if (lines.size() > screen.rows) lines.resize(screen.rows);
  for (auto& line : lines) line = cut(std::move(line), screen.columns);
  return lines;
}

std::string top_line(const process_speed& seen) {
  std::string text = fmt::format("{:>8}  {:<18} {:.2f} GB/s read, {:.2f} GB/s written", seen.now.pid, printable(seen.now.program),
                                 seen.read_gigabytes_per_second, seen.written_gigabytes_per_second);
  // Bytes of a request that has not ended are counted by its path, and not by its device.
  if (!seen.by_path.empty())
    text += fmt::format(" ({}{}{})", list_of(seen.by_path), seen.by_device.empty() ? "" : "; ", list_of(seen.by_device));
  if (seen.half_below_us > 0)
    text += fmt::format(", half of the pieces below {:.0f} us, 99% below {:.0f} us", seen.half_below_us, seen.most_below_us);
  if (under_way(seen) > 0) text += fmt::format(", {} under way, the oldest for {:.1f} s", under_way(seen), oldest_seconds(seen));
  if (seen.fallbacks > 0) text += fmt::format(", {} fallbacks", seen.fallbacks);
  if (seen.now.ended) text += ", ended without closing";
  return text + advice_codes(seen.now.stats);
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
