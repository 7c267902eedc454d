// The benchmark's report: a table for people, JSON for programs. One thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/ceilings.hpp"
#include "bench/over_sizes.hpp"
#include "bench/rows.hpp"
#include "penstock/status.hpp"

namespace penstock::bench {

struct report_header {
  std::string version, date, kernel, cpu, device, device_description, driver, file_system, io_uring;
  std::string device_remark;  // the reason why the device is not a GPU; empty if it is one
  unsigned cores = 0;
  std::uint64_t file_bytes = 0;
  link_ceiling link;
  ceiling cached_read;
};

// A table of 128 columns shows all digits. A table of 80 columns shows times and sizes in four digits, shows pinned memory in MiB, and
// wraps notes between words.
class report_table {
 public:
  explicit report_table(std::size_t columns, bool show_targets) : columns_(columns), show_targets_(show_targets) {}
  void print_header(const report_header& header) const;
  void print_column_names() const;
  // Prints one line for the figures, lines for the notes, and the targets on request.
  void print_row(const row_result& row) const;
  // Prints the points of one size, a line each.
  void print_points(std::span<const size_point> points) const;

 private:
  [[nodiscard]] bool is_wide() const { return columns_ >= 128; }
  void print_note(std::string_view text) const;
  void print_wide(const row_result& row) const;
  void print_narrow(const row_result& row) const;
  std::size_t columns_;
  bool show_targets_;
};
// Prints how many rows, and how many calls by size, were measured, skipped and failed.
void print_summary(const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped);

nlohmann::json to_json(const report_header& header, const std::vector<row_result>& rows, const size_sweep& sweep, bool stopped);
// file_name "-": stdout. Errors: os errors.
status write_json(const std::string& file_name, const nlohmann::json& report);

}  // namespace penstock::bench
