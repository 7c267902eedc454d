// The plots of the report.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/common/plot.hpp"
#include "cli/common/sizes.hpp"
#include "cli/measure/report_page.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

using points = std::vector<std::pair<double, double>>;

constexpr unsigned ours = 0, plain = 7;

// Returns the throughput by size for one series.
points throughput(const json& list, const std::string& series) {
  points found;
  for (const json& each : list) {
    const double bytes = number_in(each, "call_bytes");
    const double speed = number_in(each, "gb_per_s");
    if (text_in(each, "series") == series && bytes >= 1 && speed > 0) found.emplace_back(bytes, speed);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<plot_level> ceilings(const json& report, std::initializer_list<std::pair<const char*, const char*>> wanted) {
  std::vector<plot_level> found;
  const json& from = report.contains("ceilings") ? report.at("ceilings") : json::object();
  for (const auto& [key, name] : wanted) {
    if (const double value = number_in(from, key); value > 0) found.push_back({name, value});
  }
  return found;
}

constexpr std::pair<const char*, const char*> link{"link_to_device_gb_per_s", "copy to the device"};
constexpr std::pair<const char*, const char*> cache{"page_cache_to_memory_gb_per_s", "pread, many threads"};
constexpr std::pair<const char*, const char*> disk{"direct_read_gb_per_s", "O_DIRECT, many reads"};

std::string hot_figure(const json& report) {
  const json& sizes = list_in(report, "sizes");
  line_plot plot{
      "hot",
      "Throughput by call size: file in the page cache",
      "Calls of one size, in file order, from one thread; each batch contains 128 ranges of that size at random offsets. Unaligned calls "
      "have odd offsets and an odd address. Dotted lines are raw ceilings from the same run. Both axes are logarithmic.",
      "GB/s",
      x_axis::bytes,
      "GB/s",
      {},
      ceilings(report, {link, cache})};
  plot.lines = {{"aligned calls", throughput(sizes, "hot"), 0},
                {"unaligned calls", throughput(sizes, "unaligned"), 1},
                {"batches of 128", throughput(sizes, "batch"), 2},
                {"plain pread, one thread", throughput(sizes, "pread"), plain}};
  return draw(plot);
}

std::string cold_figure(const json& report) {
  const json& sizes = list_in(report, "sizes");
  line_plot plot{"cold",
                 "Throughput by call size: file not in the page cache",
                 "Calls of one size, in file order, from one thread; the file is dropped from the page cache before each run. The dotted "
                 "line is the disk's raw speed with many reads in flight. Both axes are logarithmic.",
                 "GB/s",
                 x_axis::bytes,
                 "GB/s",
                 {},
                 ceilings(report, {disk})};
  plot.lines = {{"Penstock", throughput(sizes, "cold"), 0}, {"plain O_DIRECT pread", throughput(sizes, "O_DIRECT"), plain}};
  return draw(plot);
}

std::string latency_figure(const json& report) {
  line_plot plot{
      "latency",
      "Latency of single calls",
      "The time within which a share of the calls completed: the further right, the rarer. Calls from one thread; the file is in the page "
      "cache unless the name says cold.",
      "us",
      x_axis::percent,
      "us",
      {},
      {}};
  unsigned style = 0;
  for (const auto& [series, suffix] : {std::pair("hot", ""), {"cold", " cold"}, {"pread", " plain pread"}}) {
    for (const json& each : list_in(report, "sizes")) {
      const double bytes = number_in(each, "call_bytes");
      const bool is_small = bytes == 4096 || bytes == 65536 || (bytes == 1 << 20 && std::string(series) == "hot");
      if (text_in(each, "series") != series || !is_small || (bytes != 4096 && std::string(series) == "pread")) continue;
      plot_line line{format_size(static_cast<std::uint64_t>(bytes)) + suffix, {}, style};
      for (const json& pair : list_in(each, "latency_us")) {
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) continue;
        const double percent = pair[0].get<double>();
        // This axis has no room below the median; the table lists these values.
        if ((percent == 0 || percent >= 50) && percent < 100 && pair[1].get<double>() > 0)
          line.points.emplace_back(percent, pair[1].get<double>());
      }
      style = std::min(style + 1, plot_styles - 1);
      plot.lines.push_back(std::move(line));
    }
  }
  return draw(plot);
}

std::string cpu_figure(const json& report) {
  bar_plot plot{"cpu",
                "CPU time for 10^9 bytes, by row",
                "Seconds on all threads of the process, including kernel time. Shorter is better. Rows below 1 MiB are omitted.",
                {}};
  for (const json& row : list_in(report, "rows")) {
    const double cost = number_in(row, "cpu_s_per_gb");
    if (cost > 0 && number_in(row, "bytes") >= (1 << 20))
      plot.bars.push_back({text_in(row, "name"), cost, fmt::format("{:.3f} CPU s/GB", cost), ours});
  }
  std::map<std::string, json> largest;
  for (const json& each : list_in(report, "sizes")) {
    json& known = largest[text_in(each, "series")];
    if (number_in(each, "cpu_s_per_gb") > 0 && number_in(each, "call_bytes") > number_in(known, "call_bytes")) known = each;
  }
  for (const auto& [series, each] : largest) {
    if (!each.is_object()) continue;
    const double cost = number_in(each, "cpu_s_per_gb");
    const std::string size = format_size(bytes_in(each, "call_bytes"));
    const bool is_plain = series == "pread" || series == "O_DIRECT";
    plot.bars.push_back({fmt::format("{}{}, {} calls", is_plain ? "plain " : "", series, size), cost, fmt::format("{:.3f} CPU s/GB", cost),
                         is_plain ? plain : ours});
  }
  return draw(plot);
}

std::string fraction_figure(const json& report) {
  bar_plot plot{"fractions",
                "How close each row comes to its ceiling",
                "Fraction of the raw speed measured in the same run; the label shows the ceiling. Longer is better.",
                {}};
  for (const json& row : list_in(report, "rows")) {
    const double part = number_in(row, "fraction");
    const std::string name = row.contains("ceiling") ? text_in(row.at("ceiling"), "name") : "";
    if (part > 0) plot.bars.push_back({text_in(row, "name"), part, fmt::format("{:.2f} of {}", part, name), ours});
  }
  return draw(plot);
}

// --- comparison with other libraries

struct subject {
  std::string name;
  const json* points = nullptr;
  unsigned style = 0;
};

// Returns our C++ library and all others with figures for several sizes.
std::vector<subject> subjects(const json& report) {
  std::vector<subject> found{{"Penstock, C++", &list_in(report, "sizes"), 0}};
  unsigned style = 1;
  for (const json& peer : list_in(report, "peers")) {
    if (!list_in(peer, "points").empty()) found.push_back({text_in(peer, "name"), &list_in(peer, "points"), style++ % plot_styles});
  }
  return found;
}

std::string beside_others(const json& report, const std::string& series, const std::string& id, const std::string& title) {
  line_plot plot{id,
                 title,
                 "Each library reads the same sizes from a file of its own kind, in its own process, one call at a time; the calls "
                 "are listed in the table of other libraries. Both axes are logarithmic.",
                 "GB/s",
                 x_axis::bytes,
                 "GB/s",
                 {},
                 ceilings(report, {series == "hot" ? link : disk})};
  for (const subject& each : subjects(report)) plot.lines.push_back({each.name, throughput(*each.points, series), each.style});
  std::erase_if(plot.lines, [](const plot_line& line) { return line.points.empty(); });
  return plot.lines.size() > 1 ? draw(plot) : std::string();
}

std::string row_bars(const json& report) {
  std::string out;
  for (const json& peer : list_in(report, "peers")) {
    bar_plot plot{"rows-of-" + std::to_string(out.size()),
                  text_in(peer, "name") + ": the rows of its benchmark",
                  "From " + text_in(peer, "program") + ". Filled bars are Penstock's.",
                  {}};
    for (const json& row : list_in(peer, "rows")) {
      const double speed = number_in(row, "gb_per_s");
      if (speed <= 0) continue;
      const double cost = number_in(row, "cpu_s_per_gb");
      plot.bars.push_back({text_in(row, "row"), speed,
                           fmt::format("{:.2f} GB/s{}", speed, cost > 0 ? fmt::format(", {:.3f} CPU s/GB", cost) : ""),
                           row.contains("ours") && row.at("ours") == true ? ours : 1});
    }
    out += draw(plot);
  }
  return out;
}

std::string cpu_beside_others(const json& report) {
  bar_plot plot{"cpu-others",
                "CPU time for 10^9 bytes, compared with others",
                "File in the page cache, at the largest size measured for each library. Shorter is better.",
                {}};
  for (const subject& each : subjects(report)) {
    const json* largest = nullptr;
    for (const json& point : *each.points) {
      const bool counts = text_in(point, "series") == "hot" && number_in(point, "cpu_s_per_gb") > 0;
      if (counts && (largest == nullptr || number_in(point, "call_bytes") > number_in(*largest, "call_bytes"))) largest = &point;
    }
    if (largest == nullptr) continue;
    const double cost = number_in(*largest, "cpu_s_per_gb");
    plot.bars.push_back({each.name, cost, fmt::format("{:.3f} CPU s/GB at {}", cost, format_size(bytes_in(*largest, "call_bytes"))),
                         each.name.starts_with("Penstock") ? ours : 1});
  }
  return plot.bars.size() > 1 ? draw(plot) : std::string();
}

}  // namespace

std::string report_figures(const json& report) {
  const auto section = [](const char* id, const char* title, const std::string& inside) {
    return inside.empty() ? std::string() : fmt::format("<section id=\"{}\"><h2>{}</h2>\n{}</section>\n", id, title, inside);
  };
  return section("throughput", "Throughput", hot_figure(report) + cold_figure(report)) +
         section("delay", "Latency", latency_figure(report)) +
         section("cost", "CPU cost and distance to the ceilings", cpu_figure(report) + fraction_figure(report));
}

std::string report_peers(const json& report) {
  return beside_others(report, "hot", "others-hot", "Compared with other libraries: file in the page cache") +
         beside_others(report, "cold", "others-cold", "Compared with other libraries: file not in the page cache") +
         cpu_beside_others(report) + row_bars(report);
}

}  // namespace penstock::cli
