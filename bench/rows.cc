#include "bench/rows.hpp"

#include <fmt/format.h>

#include <array>

#include "bench/meter.hpp"
#include "bench/row_functions.hpp"

namespace penstock::bench {
namespace {

constexpr std::array<row, 21> registry{{
    {"hot-4g", "file in the page cache, read in one call", row_kind::hot, hot_4g},
    {"hot-4g-cpu", "the same, with as little CPU time as possible", row_kind::hot, hot_4g_cpu},
    {"hot-16m", "file in the page cache, 16 MiB calls from one thread", row_kind::hot, hot_16m},
    {"hot-1m", "1 MiB calls from one thread", row_kind::hot, hot_1m},
    {"hot-16m-ahead", "16 MiB calls from one thread, on a file that is declared immutable", row_kind::hot, hot_16m_ahead},
    {"hot-1m-ahead", "1 MiB calls from one thread, on a file that is declared immutable", row_kind::hot, hot_1m_ahead},
    {"hot-1m-t8", "1 MiB calls from 8 threads", row_kind::hot, hot_1m_t8},
    {"hot-gpus", "file in the page cache, one part for each GPU, all read at the same time", row_kind::hot, hot_gpus},
    {"call-4k", "4 KiB blocking reads from the page cache, one after another", row_kind::hot, call_4k},
    {"call-64k", "64 KiB blocking reads from the page cache", row_kind::hot, call_64k},
    {"batch-4k-hot", "random 4 KiB pieces in the page cache, scattered in device memory, one batch", row_kind::hot, batch_4k_hot},
    {"unaligned", "1 GiB in the page cache: offset +1, odd length, device pointer +3", row_kind::hot, unaligned},
    {"cold-4g", "file not in the page cache, read in one call", row_kind::cold, cold_4g},
    {"half-hot", "every second 16 MiB in the page cache, compared with reading only the others", row_kind::cold, half_hot},
    {"batch-4k-cold", "random 4 KiB pieces not in the page cache, one batch", row_kind::cold, batch_4k_cold},
    {"unaligned-cold", "1 GiB not in the page cache: offset +1, odd length, device pointer +3", row_kind::cold, unaligned_cold},
    {"write-hot", "device memory over a file in the page cache, one call", row_kind::hot, write_hot},
    {"write-direct", "device memory over a file on the disk, bypassing the page cache, one call", row_kind::cold, write_direct},
    {"write-new", "device memory to a new file, with and without the page cache", row_kind::cold, write_new},
    {"start", "an engine from its creation to the end of its first 4 KiB read", row_kind::neither, start},
    // Must be last, because it reports on all other rows.
    {"pinned", "pinned host memory: none before the first transfer, and the maximum during all rows", row_kind::neither, pinned},
}};

enum class figure : std::uint8_t { fraction, cpu_per_gb, gbs, us_each, p50_us, ratio, milliseconds, pinned_mib };
enum class bound : std::uint8_t { at_least, at_most };

struct target {
  std::string_view row;
  figure what;
  bound side;
  double value;
};

// Targets for one H200 on PCIe gen 5 with 16 cores; other machines differ.
constexpr std::array<target, 22> targets{{
    {"hot-4g", figure::fraction, bound::at_least, 0.95},       {"hot-4g", figure::cpu_per_gb, bound::at_most, 0.13},
    {"hot-4g-cpu", figure::fraction, bound::at_least, 0.42},   {"hot-4g-cpu", figure::cpu_per_gb, bound::at_most, 0.03},
    {"hot-16m", figure::fraction, bound::at_least, 0.55},      {"hot-1m", figure::gbs, bound::at_least, 14},
    {"hot-16m-ahead", figure::gbs, bound::at_least, 45},       {"hot-1m-ahead", figure::gbs, bound::at_least, 30},
    {"hot-1m-t8", figure::fraction, bound::at_least, 0.80},    {"cold-4g", figure::fraction, bound::at_least, 0.95},
    {"cold-4g", figure::cpu_per_gb, bound::at_most, 0.02},     {"half-hot", figure::ratio, bound::at_most, 1.05},
    {"batch-4k-hot", figure::us_each, bound::at_most, 0.5},    {"batch-4k-cold", figure::fraction, bound::at_least, 0.95},
    {"call-4k", figure::p50_us, bound::at_most, 7.0},          {"call-64k", figure::p50_us, bound::at_most, 17},
    {"unaligned", figure::fraction, bound::at_least, 0.95},    {"unaligned-cold", figure::fraction, bound::at_least, 0.95},
    {"write-direct", figure::fraction, bound::at_least, 0.95}, {"write-hot", figure::fraction, bound::at_least, 0.95},
    {"start", figure::milliseconds, bound::at_most, 5},        {"pinned", figure::pinned_mib, bound::at_most, 512},
}};

std::string_view name_of(figure what) {
  switch (what) {
    case figure::fraction:
      return "of ceiling";
    case figure::cpu_per_gb:
      return "CPU s/GB";
    case figure::gbs:
      return "GB/s";
    case figure::us_each:
      return "us each";
    case figure::p50_us:
      return "us p50";
    case figure::ratio:
      return "time ratio";
    case figure::milliseconds:
      return "ms";
    case figure::pinned_mib:
      return "MiB pinned";
  }
  return "";
}

std::optional<double> figure_of(const row_result& out, figure what) {
  switch (what) {
    case figure::fraction:
      return out.fraction;
    case figure::cpu_per_gb:
      return out.cpu_per_gb();
    case figure::gbs:
      return out.gbs();
    case figure::us_each:
      return out.us_each();
    case figure::p50_us:
      return out.p50_us;
    case figure::ratio:
      return out.ratio;
    case figure::milliseconds:
      return out.seconds * 1e3;
    case figure::pinned_mib:
      return static_cast<double>(out.pinned_bytes) / (1 << 20);
  }
  return std::nullopt;
}

void judge(row_result& out) {
  for (const target& aim : targets) {
    if (aim.row != out.name) continue;
    const std::optional<double> seen = figure_of(out, aim.what);
    const bool least = aim.side == bound::at_least;
    const bool met = seen && (least ? *seen >= aim.value : *seen <= aim.value);
    const std::string shown = seen ? fmt::format("{:.3g}", *seen) : "not measured";
    out.targets.push_back({fmt::format("{} {} {} {}", shown, name_of(aim.what), least ? ">=" : "<=", aim.value), met});
  }
}

}  // namespace

double row_result::gbs() const { return gigabytes_per_second(bytes, seconds); }
double row_result::us_each() const { return seconds * 1e6 / static_cast<double>(calls); }
double row_result::cpu_per_gb() const { return bytes > 0 ? cpu_seconds / (static_cast<double>(bytes) / 1e9) : 0; }

std::span<const row> all_rows() { return registry; }

row_result run_row(const row& which, workbench& bench) {
  const source_scope scope(bench, which.kind == row_kind::cold);
  auto measured = which.measure(bench);
  row_result out = measured ? std::move(*measured) : row_result{};
  out.name = which.name;
  if (!measured) {
    out.outcome = row_outcome::failed;
    out.reason = std::string(measured.error().message());
  } else if (out.outcome == row_outcome::measured && !out.verified) {
    out.outcome = row_outcome::failed;
    out.reason = "its bytes were not compared";
  }
  if (out.outcome == row_outcome::measured) judge(out);
  return out;
}

}  // namespace penstock::bench
