#include "bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/output.hpp"
#include "base/printable.hpp"

namespace penstock::bench {
namespace {

using nlohmann::json;

constexpr std::string_view wide_columns = "{:<18} {:>8} {:>10} {:>6} {:>17} {:>9} {:>9} {:>9} {:>7}  {:<9} {}\n";
constexpr std::string_view narrow_columns = "{:<17} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>4} {}\n";

std::string_view to_string(row_outcome outcome) {
  switch (outcome) {
    case row_outcome::measured:
      return "measured";
    case row_outcome::skipped:
      return "skipped";
    case row_outcome::failed:
      return "failed";
  }
  return "";
}

std::string optional_text(const std::optional<double>& value, int decimals) {
  return value ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

// Formats a number below 10000 with four digits, and a larger one without decimals.
std::string short_text(double value) {
  const int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string short_text(const std::optional<double>& value) { return value ? short_text(*value) : "-"; }

std::string fraction_text(const row_result& row) {
  return row.fraction ? fmt::format("{:.3f}", *row.fraction) : row.ratio ? fmt::format("x{:.3f}", *row.ratio) : "-";
}

// The speed of a transfer below 1 MiB means nothing.
bool has_speed(const row_result& row) { return row.bytes >= (1U << 20); }

json optional_json(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

json header_json(const report_header& h) {
  return {{"penstock", h.version},
          {"date", h.date},
          {"kernel", h.kernel},
          {"cpu", h.cpu},
          {"cores", h.cores},
          {"device", h.device},
          {"device_description", h.device_description},
          {"device_remark", h.device_remark},
          {"driver", h.driver},
          {"file_system", h.file_system},
          {"io_uring", h.io_uring},
          {"file_bytes", h.file_bytes}};
}

json row_json(const row_result& row) {
  json out{{"name", row.name}, {"outcome", to_string(row.outcome)}};
  if (row.outcome != row_outcome::measured) {
    out["reason"] = row.reason;
    return out;
  }
  out["seconds"] = row.seconds;
  out["bytes"] = row.bytes;
  out["calls"] = row.calls;
  out["gb_per_s"] = row.gbs();
  out["us_each"] = row.us_each();
  out["cpu_s_per_gb"] = row.cpu_per_gb();
  out["fraction"] = optional_json(row.fraction);
  out["ratio"] = optional_json(row.ratio);
  out["p50_us"] = optional_json(row.p50_us);
  out["p99_us"] = optional_json(row.p99_us);
  out["ceiling"] = {{"name", row.ceiling.name}, {"gb_per_s", row.ceiling.value}, {"detail", row.ceiling.detail}};
  out["pinned_bytes"] = row.pinned_bytes;
  out["path"] = row.path;
  out["verified"] = row.verified;
  out["notes"] = row.notes;
  out["targets"] = json::array();
  for (const target_verdict& verdict : row.targets) out["targets"].push_back({{"text", verdict.text}, {"met", verdict.met}});
  return out;
}

json point_json(const size_point& point) {
  json out = row_json(point.figures);
  for (const char* unused : {"name", "ceiling", "fraction", "ratio", "notes", "targets"}) out.erase(unused);
  out["series"] = point.series;
  out["call_bytes"] = point.call_bytes;
  out["latency_us"] = point.latency_us;
  return out;
}

std::string size_text(std::uint64_t bytes) {
  if (bytes >= (1U << 20) && bytes % (1U << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  return bytes % 1024 == 0 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} B", bytes);
}

}  // namespace

// Wraps lines at that many columns, between words.
void report_table::print_note(std::string_view text) const {
  const std::string indent(is_wide() ? 18 : 2, ' ');
  const std::string shown = printable_text(std::string(text));
  std::string line = indent;
  for (std::size_t at = 0; at < shown.size();) {
    const std::size_t end = std::min(shown.find(' ', at), shown.size());
    if (!is_wide() && line.size() > indent.size() && line.size() + 1 + end - at > columns_) {
      print_output(line + "\n");
      line = indent;
    }
    line += " " + shown.substr(at, end - at);
    at = end + 1;
  }
  print_output(line + "\n");
}

void report_table::print_header(const report_header& h) const {
  print_output(fmt::format("penstock {} bench, {}\n", h.version, h.date));
  print_output(fmt::format("  machine   Linux {}, {} cores, GPU driver {}\n            {}\n", h.kernel, h.cores, h.driver, h.cpu));
  print_output(fmt::format("  device    {} ({})\n", h.device, h.device_description));
  if (!h.device_remark.empty()) print_output(fmt::format("            no GPU: {}\n", h.device_remark));
  print_output(fmt::format("  file      {} MiB on {}\n", h.file_bytes >> 20, printable_text(h.file_system)));
  print_output(fmt::format("  io_uring  {}\n", h.io_uring));
  print_output(fmt::format("  ceilings  link to device {:.2f} GB/s, back {:.2f} GB/s, 4 KiB copy {:.1f} us\n", h.link.to_device_gbs,
                           h.link.from_device_gbs, h.link.copy_4k_us));
  print_output(fmt::format("            page cache to memory {:.2f} GB/s ({})\n\n", h.cached_read.value, h.cached_read.how));
}

void report_table::print_column_names() const {
  if (is_wide()) {
    print_output(fmt::format(fmt::runtime(wide_columns), "row", "GB/s", "us each", "of", "ceiling GB/s", "CPU s/GB", "p50 us", "p99 us",
                             "pinned", "path", "bytes"));
  } else {
    print_output(fmt::format(fmt::runtime(narrow_columns), "", "", "us", "", "ceil.", "CPU", "p50", "p99", "pin", ""));
    print_output(fmt::format(fmt::runtime(narrow_columns), "row", "GB/s", "each", "of", "GB/s", "s/GB", "us", "us", "MiB", "path"));
  }
}

void report_table::print_wide(const row_result& row) const {
  const std::string ceiling = row.ceiling.value > 0 ? fmt::format("{:.2f}", row.ceiling.value) : "-";
  print_output(fmt::format(fmt::runtime(wide_columns), row.name, has_speed(row) ? fmt::format("{:.2f}", row.gbs()) : "-",
                           row.calls > 1 ? fmt::format("{:.2f}", row.us_each()) : "-", fraction_text(row), ceiling,
                           has_speed(row) ? fmt::format("{:.4f}", row.cpu_per_gb()) : "-", optional_text(row.p50_us, 2),
                           optional_text(row.p99_us, 2), fmt::format("{} MiB", row.pinned_bytes >> 20), row.path,
                           row.bytes > 0 ? "verified" : "-"));
}

void report_table::print_narrow(const row_result& row) const {
  const std::string ceiling = row.ceiling.value > 0 ? fmt::format("{:.2f}", row.ceiling.value) : "-";
  const auto line_with = [&](std::string_view path) {
    return fmt::format(fmt::runtime(narrow_columns), row.name, has_speed(row) ? fmt::format("{:.2f}", row.gbs()) : "-",
                       row.calls > 1 ? short_text(row.us_each()) : "-", fraction_text(row), ceiling,
                       has_speed(row) ? fmt::format("{:.4f}", row.cpu_per_gb()) : "-", short_text(row.p50_us), short_text(row.p99_us),
                       row.pinned_bytes >> 20, path);
  };
  const std::string line = line_with(row.path);
  const bool fits = line.size() <= columns_ + 1;
  print_output(fits ? line : line_with(""));
  if (!fits) print_note("path: " + row.path);
}

void report_table::print_row(const row_result& row) const {
  if (row.outcome != row_outcome::measured) {
    print_output(fmt::format("{:<18} {}: {}\n", row.name, to_string(row.outcome), printable_text(row.reason)));
    return;
  }
  is_wide() ? print_wide(row) : print_narrow(row);
  if (!row.ceiling.detail.empty()) print_note(fmt::format("ceiling: {}, {}", row.ceiling.name, row.ceiling.detail));
  for (const std::string& note : row.notes) print_note(note);
  if (!show_targets_) return;
  for (const target_verdict& verdict : row.targets) print_note(fmt::format("{} {}", verdict.met ? "PASS " : "below", verdict.text));
}

void report_table::print_points(std::span<const size_point> points) const {
  for (const size_point& point : points) {
    row_result row = point.figures;
    row.name = fmt::format("{} {}", size_text(point.call_bytes), point.series);
    report_table(columns_, false).print_row(row);
  }
}

void print_summary(const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped) {
  std::vector<row_outcome> all;
  for (const row_result& row : rows) all.push_back(row.outcome);
  for (const size_point& point : sweep.points) all.push_back(point.figures.outcome);
  print_output(fmt::format("\n{} rows measured and verified, {} skipped, {} failed{}\n", std::ranges::count(all, row_outcome::measured),
                           std::ranges::count(all, row_outcome::skipped), std::ranges::count(all, row_outcome::failed),
                           stopped ? "; stopped before the end" : ""));
}

json to_json(const report_header& header, const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped) {
  json out = header_json(header);
  out["stopped"] = stopped;
  out["ceilings"] = {{"link_to_device_gb_per_s", header.link.to_device_gbs},
                     {"link_from_device_gb_per_s", header.link.from_device_gbs},
                     {"copy_4k_us", header.link.copy_4k_us},
                     {"page_cache_to_memory_gb_per_s", header.cached_read.value},
                     {"page_cache_to_memory_how", header.cached_read.how}};
  out["rows"] = json::array();
  for (const row_result& row : rows) out["rows"].push_back(row_json(row));
  out["sizes"] = json::array();
  for (const size_point& point : sweep.points) out["sizes"].push_back(point_json(point));
  if (sweep.direct_read) {
    out["ceilings"]["direct_read_gb_per_s"] = sweep.direct_read->value;
    out["ceilings"]["direct_read_how"] = sweep.direct_read->how;
  }
  return out;
}

status write_json(const std::string& file_name, const json& report) {
  // File names and driver texts need not be UTF-8; invalid bytes are replaced.
  const std::string text = report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  if (file_name == "-") {
    print_output(text);
    return {};
  }
  std::FILE* target = std::fopen(file_name.c_str(), "we");
  if (target == nullptr) return status::from_errno(errno, fmt::format("make {}", file_name));
  const bool written = std::fwrite(text.data(), 1, text.size(), target) == text.size();
  const int write_error = errno;
  const bool closed = std::fclose(target) == 0;
  if (!written || !closed) return status::from_errno(written ? errno : write_error, fmt::format("write {}", file_name));
  return {};
}

}  // namespace penstock::bench
