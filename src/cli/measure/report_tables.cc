// The tables of the report.
#include <fmt/format.h>

#include <algorithm>

#include "cli/common/html.hpp"
#include "cli/common/sizes.hpp"
#include "cli/measure/report_page.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

std::string figure(const json& object, const char* name, int decimals) {
  return object.contains(name) && object.at(name).is_number() ? fmt::format("{:.{}f}", object.at(name).get<double>(), decimals) : "–";
}

std::string bytes_text(const json& object, const char* name) { return format_size(bytes_in(object, name)); }

html_table rows_table(const json& report) {
  html_table table{"Rows of penstock bench",
                   {"row", "GB/s", "us each", "of ceiling", "ceiling GB/s", "CPU s/GB", "p50 us", "p99 us", "path", "ceiling and notes"},
                   {},
                   1,
                   2};
  for (const json& row : list_in(report, "rows")) {
    if (text_in(row, "outcome") != "measured") {
      table.rows.push_back({text_in(row, "name"), "–", "–", "–", "–", "–", "–", "–", text_in(row, "outcome"), text_in(row, "reason")});
      continue;
    }
    const json& ceiling = row.contains("ceiling") ? row.at("ceiling") : json::object();
    std::string notes = text_in(ceiling, "name");
    if (!text_in(ceiling, "detail").empty()) notes += ": " + text_in(ceiling, "detail");
    for (const json& note : list_in(row, "notes")) notes += (notes.empty() ? "" : "; ") + (note.is_string() ? note.get<std::string>() : "");
    // The speed of a transfer below 1 MiB is meaningless.
    const bool moved = number_in(row, "bytes") >= (1 << 20);
    const std::string part = number_in(row, "ratio") > 0 ? "x" + figure(row, "ratio", 3) : figure(row, "fraction", 3);
    table.rows.push_back(
        {text_in(row, "name"), moved ? figure(row, "gb_per_s", 2) : "–", number_in(row, "calls") > 1 ? figure(row, "us_each", 2) : "–",
         part, number_in(ceiling, "gb_per_s") > 0 ? figure(ceiling, "gb_per_s", 2) : "–", moved ? figure(row, "cpu_s_per_gb", 3) : "–",
         figure(row, "p50_us", 2), figure(row, "p99_us", 2), text_in(row, "path"), notes});
  }
  return table;
}

html_table sizes_table(const json& report) {
  html_table table{"Throughput by call size, one thread", {"calls", "size", "GB/s", "us each", "CPU s/GB", "calls made", "path"}, {}, 2, 1};
  for (const json& point : list_in(report, "sizes")) {
    const bool measured = text_in(point, "outcome") == "measured";
    table.rows.push_back({text_in(point, "series"), bytes_text(point, "call_bytes"), figure(point, "gb_per_s", 3),
                          figure(point, "us_each", 2), figure(point, "cpu_s_per_gb", 3), figure(point, "calls", 0),
                          measured ? text_in(point, "path") : text_in(point, "outcome") + ": " + text_in(point, "reason")});
  }
  return table;
}

html_table latency_table(const json& report) {
  html_table table{"Latency in us, by percentile", {"calls", "size"}, {}, 2, 0};
  std::vector<double> percents;
  for (const json& point : list_in(report, "sizes")) {
    for (const json& pair : list_in(point, "latency_us")) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) continue;
      if (std::find(percents.begin(), percents.end(), pair[0].get<double>()) == percents.end()) percents.push_back(pair[0].get<double>());
    }
  }
  std::sort(percents.begin(), percents.end());
  for (const double percent : percents)
    table.columns.push_back(percent == 0 ? "min" : percent == 100 ? "max" : fmt::format("{:g} %", percent));
  for (const json& point : list_in(report, "sizes")) {
    if (list_in(point, "latency_us").empty()) continue;
    std::vector<std::string> row{text_in(point, "series"), bytes_text(point, "call_bytes")};
    for (const double percent : percents) {
      std::string cell = "–";
      for (const json& pair : list_in(point, "latency_us")) {
        if (pair.is_array() && pair.size() == 2 && pair[0] == percent && pair[1].is_number())
          cell = fmt::format("{:.1f}", pair[1].get<double>());
      }
      row.push_back(std::move(cell));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

html_table ceilings_table(const json& report) {
  html_table table{"Raw ceilings of this run, measured without the engine", {"ceiling", "value", "how"}, {}, 1, 1};
  if (!report.contains("ceilings")) return table;
  const json& from = report.at("ceilings");
  const auto add = [&](const char* key, const char* name, const char* unit, const std::string& how) {
    if (number_in(from, key) > 0) table.rows.push_back({name, fmt::format("{:.2f} {}", number_in(from, key), unit), how});
  };
  add("link_to_device_gb_per_s", "pinned memory to the device", "GB/s", "64 MiB copies, best of 5");
  add("link_from_device_gb_per_s", "the device to pinned memory", "GB/s", "64 MiB copies, best of 5");
  add("copy_4k_us", "one 4 KiB copy, including the wait", "us", "median");
  add("page_cache_to_memory_gb_per_s", "page cache to memory, pread", "GB/s", text_in(from, "page_cache_to_memory_how"));
  add("direct_read_gb_per_s", "disk to memory, O_DIRECT with io_uring", "GB/s", text_in(from, "direct_read_how"));
  return table;
}

html_table peers_table(const json& report) {
  html_table table{"Other libraries: which were measured, and how to install the rest",
                   {"library", "state", "version", "call, or why it was not measured", "how to install it"},
                   {},
                   5,
                   0};
  for (const json& peer : list_in(report, "peers")) {
    const std::string state = text_in(peer, "state");
    const std::string what = text_in(peer, "reason").empty() ? text_in(peer, "call") : text_in(peer, "reason");
    table.rows.push_back(
        {text_in(peer, "name"), state, text_in(peer, "version"), what, state == "measured" ? "" : text_in(peer, "install")});
  }
  return table;
}

html_table peer_figures_table(const json& report) {
  html_table table{"Figures of other libraries", {"library", "what", "GB/s", "us", "CPU s/GB"}, {}, 2, 0};
  for (const json& peer : list_in(report, "peers")) {
    for (const json& point : list_in(peer, "points")) {
      table.rows.push_back({text_in(peer, "name"), fmt::format("{}, {} calls", text_in(point, "series"), bytes_text(point, "call_bytes")),
                            figure(point, "gb_per_s", 3), figure(point, "us", 2), figure(point, "cpu_s_per_gb", 3)});
    }
    for (const json& row : list_in(peer, "rows")) {
      table.rows.push_back(
          {text_in(peer, "name"), text_in(row, "row"), figure(row, "gb_per_s", 3), figure(row, "us", 2), figure(row, "cpu_s_per_gb", 3)});
    }
  }
  return table;
}

std::string findings_list(const json& machine) {
  std::string out;
  for (const json& each : list_in(machine, "findings")) {
    const std::string verdict = text_in(each, "verdict");
    const std::string subject = text_in(each, "subject");
    out +=
        fmt::format("<li><b class=\"verdict-{0}\">{0}</b> {1}{2}{3}</li>\n", html_text(verdict),
                    html_text(subject.empty() ? "" : subject + ": "), html_text(text_in(each, "reason")),
                    text_in(each, "remedy").empty() ? "" : "<br/><span class=\"soft\">→ " + html_text(text_in(each, "remedy")) + "</span>");
  }
  return out.empty() ? out : "<h3>Findings of penstock check</h3>\n<ul class=\"findings\">\n" + out + "</ul>\n";
}

}  // namespace

std::string report_tables(const json& report) {
  const std::string all =
      to_html(ceilings_table(report)) + to_html(sizes_table(report)) + to_html(latency_table(report)) + to_html(rows_table(report));
  return all.empty() ? all : "<section id=\"tables\"><h2>All figures</h2>\n" + all + "</section>\n";
}

std::string peer_tables(const json& report) { return to_html(peers_table(report)) + to_html(peer_figures_table(report)); }

std::string report_machine(const json& report) {
  html_table facts{"The machine and the file", {"fact", "value"}, {}, 2, 0};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) facts.rows.push_back({name, value});
  };
  add("kernel", text_in(report, "kernel"));
  add("processor", text_in(report, "cpu"));
  add("cores available", figure(report, "cores", 0));
  add("device",
      text_in(report, "device") + (text_in(report, "device_description").empty() ? "" : ", " + text_in(report, "device_description")));
  add("why no GPU", text_in(report, "device_remark"));
  add("GPU driver", text_in(report, "driver"));
  add("file", text_in(report, "file"));
  add("file size", bytes_text(report, "file_bytes"));
  add("file system", text_in(report, "file_system"));
  add("io_uring", text_in(report, "io_uring"));
  const json& machine = report.contains("machine") ? report.at("machine") : json::object();
  html_table versions{"Versions", {"what", "version"}, {}, 2, 0};
  if (machine.contains("versions") && machine.at("versions").is_object()) {
    for (const auto& [name, value] : machine.at("versions").items())
      versions.rows.push_back({name, value.is_string() ? value.get<std::string>() : "none"});
  }
  html_table topology{"Devices near each GPU", {"GPU", "device", "address", "relation", "shared"}, {}, 5, 0};
  for (const json& each : list_in(machine, "topology")) {
    topology.rows.push_back(
        {text_in(each, "gpu"), text_in(each, "what"), text_in(each, "peer"), text_in(each, "relation"), text_in(each, "shared")});
  }
  return "<section id=\"machine\"><h2>The machine</h2>\n" + to_html(facts) + to_html(versions) + to_html(topology) +
         findings_list(machine) + "</section>\n";
}

}  // namespace penstock::cli
