#include "bench/pipes_report.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/output.hpp"

namespace penstock::bench {
namespace {

std::string size_name(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> units{"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && bytes % 1024 == 0 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, units[unit]);
}

constexpr std::string_view wide_pipe_columns = "{:>9} {:>12} {:>12} {:>12} {:>10} {:>10} {:>9} {:>12}  {}\n";
constexpr std::string_view narrow_pipe_columns = "{:>8} {:>7} {:>8} {:>7} {:>6} {:>6} {:>5} {:>5} {}\n";

}  // namespace

void pipe_report::begin(const pipe_plan& plan) {
  plan_ = plan;
  if (options_.json) return;
  if (!options_.quiet) {
    print_output(fmt::format("from {} here to {} of {}, over {}\n", options_.from, options_.to, plan.peer, plan.transport));
    for (const auto& each : plan.sending)
      print_output(fmt::format("  {:<11} {}\n", each.name, each.refusal.empty() ? "can be used" : each.refusal));
  }
  if (is_wide()) {
    print_output(fmt::format(fmt::runtime(wide_pipe_columns), "size", "one way us", "unposted us", "bare copy us", "GB/s", "bare GB/s",
                             "of bare", "CPU s/GB", "channel"));
  } else {
    print_output(fmt::format(fmt::runtime(narrow_pipe_columns), "", "one way", "unposted", "bare", "", "bare", "of", "CPU", ""));
    print_output(fmt::format(fmt::runtime(narrow_pipe_columns), "size", "us", "us", "copy us", "GB/s", "GB/s", "bare", "s/GB", "channel"));
  }
  flush_output();  // print each line at once, also to a pipe
}

void pipe_report::add(const pipe_row& row) {
  if (options_.json) return rows_.push_back(row);
  const auto number = [](double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); };
  const auto line_with = [&](std::string_view channels) {
    return fmt::format(fmt::runtime(is_wide() ? wide_pipe_columns : narrow_pipe_columns), size_name(row.size), number(row.one_way_us, 1),
                       number(row.unposted_us, 1), number(row.raw_one_us, 1), number(row.many_gbs, 2), number(row.raw_many_gbs, 2),
                       number(row.many_gbs / row.raw_many_gbs, 3), number(row.cpu_per_gb, 3), channels);
  };
  const auto channels = row.channels + (row.right ? "" : "  WRONG BYTES");
  const auto line = line_with(channels);
  print_output(is_wide() || line.size() <= options_.columns + 1 ? line : line_with("") + fmt::format("{:>8} {}\n", "", channels));
  flush_output();
}

void pipe_report::end() const {
  if (!options_.json) return;
  using nlohmann::json;
  json channels = json::array();
  for (const auto& each : plan_.sending)
    channels.push_back({{"name", each.name}, {"refusal", each.refusal.empty() ? json(nullptr) : json(each.refusal)}});
  json rows = json::array();
  for (const auto& row : rows_) {
    rows.push_back({{"bytes", row.size},
                    {"one_way_us", row.one_way_us},
                    {"unposted_one_way_us", row.unposted_us},
                    {"bare_copy_us", row.raw_one_us},
                    {"gb_per_s", row.many_gbs},
                    {"bare_gb_per_s", row.raw_many_gbs},
                    {"cpu_s_per_gb", row.cpu_per_gb},
                    {"channel", row.channels},
                    {"verified", row.right}});
  }
  const json document{{"from", options_.from},           {"to", options_.to},      {"peer", plan_.peer}, {"transport", plan_.transport},
                      {"channels", std::move(channels)}, {"rows", std::move(rows)}};
  print_output(fmt::format("{}\n", document.dump(2, ' ', false, json::error_handler_t::replace)));
}

}  // namespace penstock::bench
