// The rows of the benchmark, one function each. A row measures, compares the bytes that it moved, and returns figures; it prints nothing.
// One thread; the calls under measurement may use several.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/bench.hpp"
#include "bench/ceilings.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "penstock/engine.hpp"

namespace penstock::bench {

enum class row_outcome : std::uint8_t { measured, skipped, failed };

// The hardware limit that a row is compared with, in the unit of the row.
struct row_ceiling {
  std::string name;  // "link to device"
  double value = 0;  // 0: not measured
  std::string detail;
};

struct target_verdict {
  std::string text;  // "fraction >= 0.95"
  bool met = false;
};

struct row_result {
  std::string name;
  row_outcome outcome = row_outcome::measured;
  std::string reason;  // if skipped or failed
  // Figures of the median run.
  double seconds = 0;
  double cpu_seconds = 0;
  std::uint64_t bytes = 0;
  std::uint64_t calls = 1;
  std::string path;
  std::optional<double> p50_us, p99_us;  // of single calls
  row_ceiling ceiling;
  std::optional<double> fraction;  // of the ceiling
  std::optional<double> ratio;     // of two times, for rows that measure a ratio
  std::uint64_t pinned_bytes = 0;
  bool verified = false;
  std::vector<std::string> notes;
  std::vector<target_verdict> targets;

  [[nodiscard]] double gbs() const;
  [[nodiscard]] double us_each() const;
  [[nodiscard]] double cpu_per_gb() const;
};

// Shared by all rows.
struct workbench {
  const options& settings;
  engine& owner;
  ceiling_meter& meter;
  std::string device;
  link_ceiling link;
  sample_file& sample;
  file source;       // the sample, opened for reading
  file cold_source;  // the same, past the page cache unless the environment overrides it, so that repeated cold rows measure the disk, too
  device_buffer target;  // as large as the sample plus spare_bytes
  std::string directory;
  std::optional<sample_file> scratch;  // the file that write rows overwrite; created by the first of them
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> file_hashes;  // by range of the sample: offset, length
  std::uint64_t next_seed = 1000;

  static constexpr std::uint64_t spare_bytes = 8192;
};

// If cold, swaps workbench::source with the cold source during its lifetime.
class source_scope {
 public:
  source_scope(workbench& bench, bool cold) : bench_(bench), cold_(cold) {
    if (cold_) std::swap(bench_.source, bench_.cold_source);
  }
  source_scope(const source_scope&) = delete;
  source_scope& operator=(const source_scope&) = delete;
  ~source_scope() {
    if (cold_) std::swap(bench_.source, bench_.cold_source);
  }

 private:
  workbench& bench_;
  const bool cold_;
};

enum class row_kind : std::uint8_t { hot, cold, neither };

struct row {
  std::string_view name;
  std::string_view summary;
  row_kind kind;
  result<row_result> (*measure)(workbench& bench);  // returns errc::cancelled if it is stopped
};

// Returns the rows in the order in which they run.
std::span<const row> all_rows();
// Runs a row. Stores failures of any kind in the result, and judges its targets.
row_result run_row(const row& which, workbench& bench);

}  // namespace penstock::bench
