// The benchmark's report: a table for people, JSON for programs. One thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "bench/ceilings.hpp"
#include "bench/over_sizes.hpp"
#include "bench/rows.hpp"
#include "penstock/status.hpp"

namespace penstock::bench {

struct report_header {
  std::string version, date, kernel, cpu, device, device_description, driver, file_system;
  std::string device_remark;  // why it is not a GPU; empty when it is
  unsigned cores = 0;
  std::uint64_t file_bytes = 0;
  link_ceiling link;
  ceiling cached_read;
};

void print_header(const report_header& header);
void print_column_names();
// One line for the figures, one for each note, and the targets when asked for.
void print_row(const row_result& row, bool show_targets);
// How many rows, and calls of a size, were measured, skipped and failed.
void print_summary(const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped);

// The points of one size, a line each.
void print_points(std::span<const size_point> points);

nlohmann::json to_json(const report_header& header, const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped);
// file_name "-": stdout. Errors: os errors.
status write_json(const std::string& file_name, const nlohmann::json& report);

}  // namespace penstock::bench
