// Tools for the rows: repeated runs, the page cache state of files, comparison of bytes, and figures. One thread, except for stop_asked(),
// moved_all() and read_range(), which any thread may call.
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
  std::vector<double> call_us;  // empty unless the body records them
};

struct measurement {
  unsigned repeats = 1;
  bool warm_up = false;  // add a first run that does not count
  std::function<status(bool last)> prepare;
  std::function<status(sample&)> body;  // the timed part
};

// Returns the run with the median time. For an even number, returns the slower of the two in the middle, so that every figure was really
// measured.
sample median_run(std::vector<sample> runs);
// Prepares and times each run. Blocks. Errors: those of prepare and body; cancelled.
result<sample> measure(workbench& bench, const measurement& plan);
unsigned hot_repeats(const workbench& bench);
unsigned cold_repeats(const workbench& bench);

bool stop_asked(const workbench& bench);
status stopped();  // the error errc::cancelled

// --- figures

row_result to_result(const workbench& bench, const sample& run, std::uint64_t bytes, std::uint64_t calls = 1);
row_result skip(std::string reason);
// Sets ceiling and fraction. ceiling_gbs 0: there is no ceiling.
void compare(row_result& out, std::string name, double ceiling_gbs, std::string detail = {});

// A hardware limit measured before and after a row, because the speed of disks drifts.
struct drifting {
  std::optional<ceiling> before, after;
  std::string problem;

  void add(const result<ceiling>& measured);
  [[nodiscard]] double mean() const;  // 0 unless both were measured
};
void compare_drifting(row_result& out, std::string name, const drifting& raw);
// Returns how many bytes of a file to use for measuring the limit of the disk.
std::uint64_t probe_bytes(const workbench& bench);

// --- the page cache

struct file_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Reads ranges without the engine, so that only they are in the page cache.
status warm(workbench& bench, const std::string& path, const std::vector<file_range>& ranges);
// Errors: out_of_memory if the file does not stay in the page cache.
status make_hot(workbench& bench, const std::string& path, std::uint64_t size);
// Errors: unsupported if the file system keeps its pages (tmpfs).
status make_cold(const std::string& path, std::uint64_t size);
// Returns a skipped result if the sample cannot be dropped from the page cache.
std::optional<row_result> skip_unless_cold(workbench& bench);
// Writes dirty pages to disk.
status flush(workbench& bench, const std::string& path);

// --- bytes

std::byte* target_bytes(const workbench& bench);
// Returns the error of a transfer; io if it is short without an error.
status moved_all(const io_result& done, std::uint64_t length);
status read_range(const workbench& bench, file_range range, std::byte* target, const io_options& options = {});

status differ(std::string_view what);  // the error of wrong bytes
// Compares device memory with the sample, read without the engine.
status verify_read(workbench& bench, file_range range, const std::byte* target);
// Clears the memory before the run whose bytes are compared, so that earlier data cannot pass for it.
status wipe_if(bool last, const workbench& bench, std::byte* target, std::uint64_t length);

}  // namespace penstock::bench
