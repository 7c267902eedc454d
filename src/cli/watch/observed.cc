#include "cli/watch/observed.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/printable.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

double gigabytes_per_second(const path_stats& path) {
  return path.active_ns == 0 ? 0 : static_cast<double>(path.bytes) / static_cast<double>(path.active_ns);
}

std::string time_text(double microseconds) {
  if (microseconds < 1000) return fmt::format("{:.0f} us", microseconds);
  if (microseconds < 1e6) return fmt::format("{:.0f} ms", microseconds / 1000);
  return fmt::format("{:.0f} s", microseconds / 1e6);
}

std::string histogram_lines(const std::array<std::uint64_t, 24>& histogram, bool of_sizes) {
  const std::uint64_t most = std::max<std::uint64_t>(*std::max_element(histogram.begin(), histogram.end()), 1);
  std::string lines;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    if (histogram[i] == 0) continue;
    const std::uint64_t least = i == 0 ? 0 : std::uint64_t{1} << i;
    const std::string from = of_sizes ? format_size(least << 10) : time_text(static_cast<double>(least));
    const auto width = static_cast<std::size_t>(std::ceil(30.0 * static_cast<double>(histogram[i]) / static_cast<double>(most)));
    lines += fmt::format("      from {:>8} {:>12}  {}\n", from, histogram[i], std::string(width, '#'));
  }
  return lines;
}

bool used_cufile(const usage_stats& of) {
  return of.handle_registers + of.handle_register_errors + of.buffer_registers + of.buffer_register_errors + of.batch_submits +
             of.batch_submit_errors >
         0;
}

std::string describe_path(const path_stats& path, int level) {
  std::string text = fmt::format("  {:<8} {} in {} pieces at {:.2f} GB/s", path.name, format_size(path.bytes), path.operations,
                                 gigabytes_per_second(path));
  if (path.errors > 0) text += fmt::format(", {} failed", path.errors);
  if (path.fallbacks > 0) text += fmt::format("; {} fallbacks, the latest: {}", path.fallbacks, printable_text(path.last_fallback));
  text += '\n';
  if (level >= 2) {
    text += fmt::format("    piece sizes\n{}", histogram_lines(path.size_histogram, true));
    text += fmt::format("    piece times (half below {}, 99% below {})\n{}", time_text(percentile_us(path.latency_histogram, 0.5)),
                        time_text(percentile_us(path.latency_histogram, 0.99)), histogram_lines(path.latency_histogram, false));
  }
  return text;
}

}  // namespace

std::string joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const auto& each : parts) text += (text.empty() || each.empty() ? "" : ", ") + each;
  return text;
}

double percentile_us(const std::array<std::uint64_t, 24>& histogram, double part) {
  const auto all = std::accumulate(histogram.begin(), histogram.end(), std::uint64_t{0});
  if (all == 0) return 0;
  const auto wanted = static_cast<std::uint64_t>(std::ceil(static_cast<double>(all) * part));
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.size(); ++i) {
    below += histogram[i];
    if (below >= wanted) return static_cast<double>(std::uint64_t{2} << i);
  }
  return static_cast<double>(std::uint64_t{2} << (histogram.size() - 1));
}

double age_seconds(const request_info& request) {
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return std::max(0.0, (static_cast<double>(now) - static_cast<double>(request.since_ns)) / 1e9);  // a board may contain any value
}

namespace {

std::string_view direction_of(const request_info& request) {
  if (request.of_pipe) return request.is_write ? "send" : "receive";
  return request.is_write ? "write" : "read";
}

}  // namespace

std::string describe(const request_info& request) {
  if (request.of_pipe) {
    const std::string memory =
        request.device.empty() ? "" : fmt::format(" {} {}", request.is_write ? "from" : "into", printable_text(request.device));
    return fmt::format("pipe with {}: {} {}{}, for {:.1f} s", printable_text(request.file), direction_of(request),
                       format_size(request.length), memory, age_seconds(request));
  }
  const std::string where = request.offset < 0 ? "" : fmt::format(" at {}", request.offset);
  const std::string memory =
      request.device.empty() ? "" : fmt::format(" {} {}", request.is_write ? "from" : "to", printable_text(request.device));
  return fmt::format("{} {} {}{}{}{}, for {:.1f} s", printable_text(request.file), direction_of(request), format_size(request.length),
                     where, memory, request.priority == request_priority::background ? " in the background" : "", age_seconds(request));
}

std::string describe(const channel_stats& of) {
  return fmt::format("{} sent in {}, {} received in {}{}", format_size(of.sent_bytes), counted(of.sent_tensors, "tensor", "tensors"),
                     format_size(of.received_bytes), counted(of.received_tensors, "tensor", "tensors"),
                     of.pushed_tensors > 0 ? fmt::format(", {} of them pushed", of.pushed_tensors) : "");
}

std::string describe_servers(const usage_stats& of) {
  const auto tls = of.remote_tls_bytes == 0 ? "" : fmt::format(" ({} over TLS)", format_size(of.remote_tls_bytes));
  const auto redirects = of.remote_redirects == 0 ? "" : ", " + counted(of.remote_redirects, "redirect", "redirects");
  return fmt::format("{} received{} by {} over {}, {} retried, {} delayed by the server{}", format_size(of.remote_bytes), tls,
                     counted(of.remote_requests, "request", "requests"), counted(of.remote_connections, "connection", "connections"),
                     of.remote_retries, of.remote_put_offs, redirects);
}

// Uses the wording of gds_stats.
std::string describe_cufile(const usage_stats& of) {
  return fmt::format("HandleRegister: ok={} err={}  BufRegister: ok={} err={}  BatchSubmit: ok={} err={}", of.handle_registers,
                     of.handle_register_errors, of.buffer_registers, of.buffer_register_errors, of.batch_submits, of.batch_submit_errors);
}

std::string stats_title() {
  return fmt::format("{:>8}  {:<18} {:>10} {:>10} {:>9} {:>9}  {}", "PID", "PROGRAM", "READ", "WRITTEN", "REQUESTS", "IN FLIGHT", "NOTES");
}

std::string stats_line(const process_stats& seen) {
  const auto under_way =
      seen.requests ? std::to_string(seen.requests->size() + seen.requests_not_shown) : std::string(seen.ended ? "-" : "?");
  auto line =
      fmt::format("{:>8}  {:<18.18} {:>10} {:>10} {:>9} {:>9}", seen.pid, printable_text(seen.program), format_size(seen.stats.read_bytes),
                  format_size(seen.stats.written_bytes), seen.stats.reads + seen.stats.writes, under_way);
  const auto notes = joined({seen.stats.failed > 0 ? fmt::format("{} failed", seen.stats.failed) : "",
                             seen.ended ? "exited without closing" : "", advice_codes(seen.stats)});
  return notes.empty() ? line : line + "  " + notes;
}

std::string ended_line(std::span<const int> pids, std::string_view how_to_see_them) {
  constexpr std::size_t most = 8;
  const auto named = pids.first(std::min(most, pids.size()));
  return fmt::format("{} exited without closing ({}{}); {}", counted(pids.size(), "process", "processes"), fmt::join(named, ", "),
                     pids.size() > most ? ", ..." : "", how_to_see_them);
}

std::string_view no_processes(bool of_those_named) {
  return of_those_named ? "no process of this user with these PIDs uses Penstock" : "no process of this user uses Penstock";
}

std::string advice_codes(const engine_stats& stats) {
  std::string text;
  for (const auto& each : advise(stats)) text += fmt::format("{}{}", text.empty() ? "advice: " : " ", each.code);
  return text;
}

std::string describe(const advice& given) { return fmt::format("{} {} [{}]", given.text, given.remedy, given.code); }

nlohmann::json to_json(const advice& given) {
  return {{"code", given.code},
          {"text", given.text},
          {"remedy", given.remedy},
          {"loss_seconds", given.loss_seconds ? nlohmann::json(*given.loss_seconds) : nlohmann::json(nullptr)}};
}

nlohmann::json to_json(const usage_stats& usage) {
  nlohmann::json told{{"lanes", usage.lanes}, {"copy_ns_per_mib", usage.copy_ns_per_mib}};
  for (const auto& each : usage_counters()) told[std::string(each.name)] = usage.*each.value;
  return told;
}

std::string describe(const process_stats& seen, int level) {
  const auto& stats = seen.stats;
  std::string text =
      fmt::format("process {} ({}), Penstock {}{}\n", seen.pid, printable_text(seen.program), printable_text(seen.penstock_version),
                  seen.ended ? ": exited without closing; these are its last figures" : "");
  text += fmt::format("  read     {} in {} requests\n  written  {} in {} requests\n", format_size(stats.read_bytes), stats.reads,
                      format_size(stats.written_bytes), stats.writes);
  text += fmt::format("  failed   {}, cancelled {}, timed out {}\n", stats.failed, stats.cancelled, stats.timed_out);
  if (seen.requests) {
    text += fmt::format("  pinned   {} (peak {})\n", format_size(stats.pinned_bytes), format_size(stats.pinned_peak_bytes));
    if (stats.pinned_file_bytes + stats.pinned_file_drops > 0) {
      text += fmt::format("  files    {} pinned, {} ranges dropped\n", format_size(stats.pinned_file_bytes), stats.pinned_file_drops);
    }
  } else if (!seen.ended) {
    text += "  the process does not respond (it is stopped or very busy): its requests in flight are unknown\n";
  }
  text += "paths\n";
  const bool any =
      std::any_of(stats.by_path.begin(), stats.by_path.end(), [](const path_stats& path) { return path.operations + path.fallbacks > 0; });
  if (!any) text += "  no bytes were transferred\n";
  for (const auto& path : stats.by_path) {
    if (path.operations + path.fallbacks > 0) text += describe_path(path, level);
  }
  if (!stats.by_channel.empty()) text += "pipes\n";
  for (const auto& each : stats.by_channel) text += fmt::format("  {:<10} {}\n", printable_text(each.name), describe(each));
  if (stats.usage.remote_requests > 0) text += fmt::format("servers\n  {}\n", describe_servers(stats.usage));
  if (used_cufile(stats.usage)) text += fmt::format("cuFile\n  {}\n", describe_cufile(stats.usage));
  if (level >= 3) {
    text += "memory\n";
    for (const auto& device : stats.by_device) {
      text += fmt::format("  {:<8} {} read in {} requests, {} written in {} requests\n", device.name.empty() ? "unknown" : device.name,
                          format_size(device.read_bytes), device.reads, format_size(device.written_bytes), device.writes);
    }
  }
  if (seen.requests && !seen.requests->empty()) {
    text += "in flight\n";
    for (const auto& request : *seen.requests) text += fmt::format("  {}\n", describe(request));
    if (seen.requests_not_shown > 0) text += fmt::format("  and {} more\n", seen.requests_not_shown);
  }
  if (const auto found = advise(stats); !found.empty()) {
    text += "advice\n";
    for (const auto& each : found) text += fmt::format("  {}\n", describe(each));
  }
  return text;
}

nlohmann::json to_json(const process_stats& seen) {
  using nlohmann::json;
  const auto& stats = seen.stats;
  json document{{"pid", seen.pid},
                {"program", seen.program},
                {"penstock_version", seen.penstock_version},
                {"ended_without_closing", seen.ended},
                {"reads", stats.reads},
                {"writes", stats.writes},
                {"read_bytes", stats.read_bytes},
                {"written_bytes", stats.written_bytes},
                {"failed", stats.failed},
                {"cancelled", stats.cancelled},
                {"timed_out", stats.timed_out},
                {"pinned_bytes", stats.pinned_bytes},
                {"pinned_peak_bytes", stats.pinned_peak_bytes},
                {"pinned_file_bytes", stats.pinned_file_bytes},
                {"pinned_file_drops", stats.pinned_file_drops}};
  document["paths"] = json::array();
  for (const auto& path : stats.by_path) {
    if (path.operations + path.fallbacks == 0) continue;
    document["paths"].push_back({{"name", path.name},
                                 {"operations", path.operations},
                                 {"bytes", path.bytes},
                                 {"written_bytes", path.written_bytes},
                                 {"errors", path.errors},
                                 {"fallbacks", path.fallbacks},
                                 {"last_fallback", path.last_fallback.empty() ? json(nullptr) : json(path.last_fallback)},
                                 {"busy_seconds", static_cast<double>(path.busy_ns) / 1e9},
                                 {"active_seconds", static_cast<double>(path.active_ns) / 1e9},
                                 {"pieces_by_kib_power_of_2", path.size_histogram},
                                 {"pieces_by_us_power_of_2", path.latency_histogram}});
  }
  document["devices"] = json::array();
  for (const auto& device : stats.by_device) {
    document["devices"].push_back({{"name", device.name.empty() ? json(nullptr) : json(device.name)},
                                   {"reads", device.reads},
                                   {"writes", device.writes},
                                   {"read_bytes", device.read_bytes},
                                   {"written_bytes", device.written_bytes}});
  }
  document["channels"] = json::array();
  for (const auto& channel : stats.by_channel) {
    document["channels"].push_back({{"name", channel.name},
                                    {"sent_tensors", channel.sent_tensors},
                                    {"sent_bytes", channel.sent_bytes},
                                    {"received_tensors", channel.received_tensors},
                                    {"received_bytes", channel.received_bytes},
                                    {"pushed_tensors", channel.pushed_tensors}});
  }
  document["usage"] = to_json(stats.usage);
  document["advice"] = json::array();
  for (const auto& each : advise(stats)) document["advice"].push_back(to_json(each));
  document["requests"] = nullptr;
  if (seen.requests) {
    auto& requests = document["requests"] = json::array();
    for (const auto& each : *seen.requests) {
      requests.push_back({{"file", each.file},
                          {"offset", each.offset < 0 ? json(nullptr) : json(each.offset)},
                          {"length", each.length},
                          {"direction", direction_of(each)},
                          {"device", each.device.empty() ? json(nullptr) : json(each.device)},
                          {"age_seconds", age_seconds(each)}});
    }
  }
  document["requests_not_shown"] = seen.requests_not_shown;
  return document;
}

}  // namespace penstock::cli
