#include "cli/measure/report_page.hpp"

#include <fmt/format.h>

#include "cli/common/html.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

struct key_figure {
  std::string name, value, remark;
};

const json* find_in(const json& list, const char* key, const char* value) {
  for (const json& each : list) {
    if (text_in(each, key) == value && text_in(each, "outcome") == "measured") return &each;
  }
  return nullptr;
}

const json* best_of(const json& report, const char* series) {
  const json* best = nullptr;
  for (const json& each : list_in(report, "sizes")) {
    if (text_in(each, "series") == series && number_in(each, "gb_per_s") > (best != nullptr ? number_in(*best, "gb_per_s") : 0))
      best = &each;
  }
  return best;
}

std::vector<key_figure> key_figures(const json& report) {
  std::vector<key_figure> out;
  const json& rows = list_in(report, "rows");
  const auto add_speed = [&](const char* row_name, const char* series, const char* title) {
    if (const json* row = find_in(rows, "name", row_name)) {
      const double part = number_in(*row, "fraction");
      out.push_back({title, fmt::format("{:.1f} GB/s", number_in(*row, "gb_per_s")),
                     part > 0 && row->contains("ceiling") ? fmt::format("{:.2f} of {}, one call", part, text_in(row->at("ceiling"), "name"))
                                                          : "one call"});
    } else if (const json* best = best_of(report, series)) {
      out.push_back(
          {title, fmt::format("{:.1f} GB/s", number_in(*best, "gb_per_s")), format_size(bytes_in(*best, "call_bytes")) + " calls"});
    }
  };
  add_speed("hot-4g", "hot", "file in the page cache");
  add_speed("cold-4g", "cold", "file not in the page cache");
  if (const json* row = find_in(rows, "name", "call-4k"); row != nullptr && number_in(*row, "p50_us") > 0) {
    out.push_back({"one blocking 4 KiB read", fmt::format("{:.1f} us", number_in(*row, "p50_us")), "median, page cache"});
  }
  if (const json* row = find_in(rows, "name", "hot-4g"); row != nullptr && number_in(*row, "cpu_s_per_gb") > 0) {
    out.push_back({"CPU time for 10^9 bytes", fmt::format("{:.2f} s", number_in(*row, "cpu_s_per_gb")), "page cache, one call"});
  }
  return out;
}

std::string keys_html(const json& report) {
  std::string out;
  for (const key_figure& each : key_figures(report)) {
    out += fmt::format("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>\n", html_text(each.name), html_text(each.value),
                       html_text(each.remark));
  }
  return out.empty() ? out : "<dl class=\"keys\">\n" + out + "</dl>\n";
}

std::string peers_section(const json& report) {
  const std::string inside = report_peers(report) + peer_tables(report);
  return inside.empty() ? inside : "<section id=\"others\"><h2>Compared with other libraries</h2>\n" + inside + "</section>\n";
}

std::string outcome(const json& report) {
  std::string failed;
  for (const char* list : {"rows", "sizes"}) {
    for (const json& each : list_in(report, list)) {
      if (text_in(each, "outcome") != "failed") continue;
      const std::string name = text_in(each, "name").empty() ? text_in(each, "series") : text_in(each, "name");
      failed += fmt::format("<li>{}: {}</li>\n", html_text(name), html_text(text_in(each, "reason")));
    }
  }
  std::string out = "<p>Every figure comes from a run whose bytes were compared with the file.</p>\n";
  if (report.contains("stopped") && report.at("stopped") == true) out += "<p><strong>The run was stopped early.</strong></p>\n";
  return failed.empty() ? out : out + "<p><strong>Failed:</strong></p>\n<ul>\n" + failed + "</ul>\n";
}

std::string links(const std::string& body) {
  std::string out;
  for (const auto& [id, name] : {std::pair("throughput", "Throughput"),
                                 {"delay", "Latency"},
                                 {"cost", "CPU cost"},
                                 {"others", "Other libraries"},
                                 {"tables", "All figures"},
                                 {"machine", "The machine"},
                                 {"method", "How it was measured"}}) {
    if (body.find(fmt::format("<section id=\"{}\"", id)) != std::string::npos)
      out += fmt::format("<li><a href=\"#{}\">{}</a></li>", id, name);
  }
  return "<nav aria-label=\"Contents\"><ul>" + out + "</ul></nav>\n";
}

std::string method(const json& report) {
  const std::string command = text_in(report, "command");
  return fmt::format(
      "<section id=\"method\"><h2>How it was measured</h2>\n"
      "{}<p>GB/s are 10^9 bytes per second for the whole call. CPU seconds cover all threads of the process, including kernel time. Each "
      "figure comes from the run with the median time; latencies are those of the calls in that run. Ceilings are measured in the same "
      "run, without the engine. The kernel confirms before each run that a file is either completely in the page cache or not at all.</p>\n"
      "</section>\n",
      command.empty() ? "" : fmt::format("<p>Command: <code>{}</code></p>\n", html_text(command)));
}

std::string page(const json& report) {
  const std::string device =
      text_in(report, "device_description").empty() ? text_in(report, "device") : text_in(report, "device_description");
  const std::string title = fmt::format("Penstock {} on {}", text_in(report, "penstock"), device);
  const std::string body = report_figures(report) + peers_section(report) + report_tables(report) + report_machine(report) + method(report);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"generator\" content=\"penstock "
      "{0}\"/>\n<title>{1}</title>\n"
      "<style>{2}</style>\n</head>\n<body>\n<main>\n<header>\n<p class=\"kind\">Benchmark report</p>\n<h1>{1}</h1>\n"
      "<p class=\"soft\">{3} · {4}, {5} cores · Linux {6} · a file of {7} on "
      "{8}</p>\n{9}</header>\n{10}{11}{12}</main>\n</body>\n</html>\n",
      html_text(text_in(report, "penstock")), html_text(title), report_style, html_text(text_in(report, "date")),
      html_text(text_in(report, "cpu")), number_in(report, "cores"), html_text(text_in(report, "kernel")),
      html_text(format_size(bytes_in(report, "file_bytes"))), html_text(text_in(report, "file_system")), links(body), keys_html(report),
      outcome(report), body);
}

}  // namespace

double number_in(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name) || !object.at(name).is_number()) return 0;
  return object.at(name).get<double>();
}

std::uint64_t bytes_in(const json& object, const char* name) {
  constexpr double most = 9e18;
  const double found = number_in(object, name);
  return found > 0 && found < most ? static_cast<std::uint64_t>(found) : 0;
}

std::string text_in(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return {};
  const json& value = object.at(name);
  return value.is_string() ? value.get<std::string>() : value.is_number() ? value.dump() : std::string();
}

const json& list_in(const json& object, const char* name) {
  static const json none = json::array();
  return object.is_object() && object.contains(name) && object.at(name).is_array() ? object.at(name) : none;
}

result<std::string> render_report(const json& report) {
  if (text_in(report, "penstock").empty() || !report.contains("rows") || !report.at("rows").is_array())
    return status(errc::invalid_argument, "not a result of `penstock bench --json`");
  return page(report);
}

}  // namespace penstock::cli
