// What the rows are made of: repeated runs, the state of files in the page cache, comparison of bytes, and figures. One thread, but for
// stop_asked(), moved_all() and read_range(), which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/rows.hpp"

namespace penstock::bench {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = kib * kib;
inline constexpr std::uint64_t gib = kib * mib;

// --- runs

struct sample {
  double seconds = 0;
  double cpu_seconds = 0;
  std::string path;
  std::vector<double> call_us;  // when the body notes them
};

struct measurement {
  unsigned repeats = 1;
  bool warm_up = false;  // one more run first, that does not count
  std::function<status(bool last)> prepare;
  std::function<status(sample&)> body;  // what is timed
};

// The run of median time. Of an even number the slower of the two in the middle, so that every figure is one that was seen.
sample median_run(std::vector<sample> runs);
// Prepares and times each run. Blocks. Errors: those of prepare and body; cancelled.
result<sample> measure(workbench& bench, const measurement& plan);
unsigned hot_repeats(const workbench& bench);
unsigned cold_repeats(const workbench& bench);

bool stop_asked(const workbench& bench);
status stopped();  // errc::cancelled

// --- figures

row_result to_result(const workbench& bench, const sample& run, std::uint64_t bytes, std::uint64_t calls = 1);
row_result skip(std::string reason);
// Sets ceiling and fraction. ceiling_gbs 0: there is none.
void compare(row_result& out, std::string name, double ceiling_gbs, std::string detail = {});

// A raw speed before and after a row, since disks drift.
struct drifting {
  std::optional<ceiling> before, after;
  std::string problem;

  void add(const result<ceiling>& measured);
  [[nodiscard]] double mean() const;  // 0 unless both were measured
};
void compare_drifting(row_result& out, std::string name, const drifting& raw);
// How much of a file a ceiling of the disk is measured with.
std::uint64_t probe_bytes(const workbench& bench);

// --- the page cache

struct file_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Reads ranges plainly, so that they lie in the page cache, and nothing around them.
status warm(workbench& bench, const std::string& path, const std::vector<file_range>& ranges);
// Errors: out_of_memory when the file does not stay in the page cache.
status make_hot(workbench& bench, const std::string& path, std::uint64_t size);
// Errors: unsupported where the file system keeps its pages (tmpfs).
status make_cold(const std::string& path, std::uint64_t size);
// A result that says so where the sample cannot be made cold.
std::optional<row_result> skip_unless_cold(workbench& bench);
// Writes dirty pages to the disk.
status flush(workbench& bench, const std::string& path);

// --- bytes

std::byte* target_bytes(const workbench& bench);
// The error of a transfer; io when it fell short without one.
status moved_all(const io_result& done, std::uint64_t length);
status read_range(const workbench& bench, file_range range, std::byte* target, const io_options& options = {});

status differ(std::string_view what);  // the error of wrong bytes
// Compares device memory with the sample, read plainly.
status verify_read(workbench& bench, file_range range, const std::byte* target);
// Before the run whose bytes are compared, what earlier runs left behind is wiped.
status wipe_if(bool last, const workbench& bench, std::byte* target, std::uint64_t length);

}  // namespace penstock::bench
