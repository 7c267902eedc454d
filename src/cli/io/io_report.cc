#include "cli/io/io_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/meter.hpp"
#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;
constexpr std::array<std::pair<const char*, double>, 4> percentiles{{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}}};

std::uint64_t kib_of(std::uint64_t bytes) { return (bytes + 1023) / 1024; }

double gbs_of(const io_figures& run) { return bench::gigabytes_per_second(run.all.bytes, run.all.seconds); }

double cpu_per_gb(const io_figures& run) { return run.all.bytes == 0 ? 0 : run.cpu_seconds * 1e9 / static_cast<double>(run.all.bytes); }

std::string times_of(const io_figures& run) {
  std::string text = "requests took";
  for (const auto& [name, part] : percentiles) text += fmt::format(" {} {:.1f} us,", name, run.all.latencies.percentile_us(part));
  constexpr std::uint64_t least_for_a_speed = std::uint64_t{1} << 20;
  if (run.all.bytes >= least_for_a_speed) text += fmt::format(" {:.3f} CPU s/GB,", cpu_per_gb(run));
  return text + fmt::format(" path {}", run.path);
}

std::string cache_of(const io_figures& run) {
  if (!run.cached_before) return "the part in the page cache is unknown";
  return fmt::format("{} of {} were in the page cache", format_size(*run.cached_before), format_size(run.data_bytes));
}

std::string verified_of(const io_figures& run) {
  std::string text = fmt::format("verified {}", format_size(run.verified_bytes));
  if (run.unwritten_bytes > 0) text += fmt::format(", plus {} that were never written", format_size(run.unwritten_bytes));
  return text;
}

}  // namespace

std::string gdsio_line(const io_figures& run, const io_job_figures& part) {
  const std::string depth = is_batch(run.transfer) ? fmt::format("IoDepth: {} ", part.depth) : "";
  const double throughput = part.seconds > 0 ? static_cast<double>(part.bytes) / gib / part.seconds : 0;
  return fmt::format(
      "IoType: {} XferType: {} Threads: {} {}DataSetSize: {}/{}(KiB) IOSize: {}(KiB) Throughput: {:.6f} GiB/sec, Avg_Latency: {:.6f} "
      "usecs ops: {} total_time {:.6f} secs",
      name_of(run.io), name_of(run.transfer), part.threads, depth, kib_of(part.bytes), kib_of(part.total_bytes), kib_of(run.io_size),
      throughput, part.latencies.mean_us(), part.latencies.total(), part.seconds);
}

std::vector<std::string> describe(const io_figures& run) {
  std::vector<std::string> lines{times_of(run), cache_of(run)};
  if (run.verified_bytes + run.unwritten_bytes > 0) lines.back() += "; " + verified_of(run);
  if (run.ceiling_gbs > 0)
    lines.push_back(fmt::format("{:.2f} GB/s is {:.2f} of the ceiling of {:.2f} GB/s ({})", gbs_of(run), gbs_of(run) / run.ceiling_gbs,
                                run.ceiling_gbs, run.ceiling_name));
  if (!run.unverified.empty())
    lines.push_back(fmt::format("not verified, because penstock io did not write it: {}", fmt::join(run.unverified, ", ")));
  return lines;
}

nlohmann::json to_json(const io_figures& run) {
  using nlohmann::json;
  json times{{"mean", run.all.latencies.mean_us()}};
  for (const auto& [name, part] : percentiles) times[name] = run.all.latencies.percentile_us(part);
  auto jobs = json::array();
  for (const io_job_figures& each : run.jobs)
    jobs.push_back(
        {{"name", each.name}, {"device", each.device}, {"threads", each.threads}, {"bytes", each.bytes}, {"seconds", each.seconds}});
  return {{"io_type", name_of(run.io)},
          {"xfer_type", name_of(run.transfer)},
          {"threads", run.all.threads},
          {"depth", run.all.depth},
          {"io_size", run.io_size},
          {"bytes", run.all.bytes},
          {"data_bytes", run.data_bytes},
          {"seconds", run.all.seconds},
          {"requests", run.all.latencies.total()},
          {"gb_per_s", gbs_of(run)},
          {"latency_us", times},
          {"cpu_s_per_gb", cpu_per_gb(run)},
          {"path", run.path},
          {"cached_bytes_before", run.cached_before ? json(*run.cached_before) : json(nullptr)},
          {"verified_bytes", run.verified_bytes},
          {"unwritten_bytes", run.unwritten_bytes},
          {"unverified", run.unverified},
          {"ceiling", run.ceiling_gbs > 0 ? json{{"name", run.ceiling_name}, {"gb_per_s", run.ceiling_gbs}} : json(nullptr)},
          {"fraction", run.ceiling_gbs > 0 ? json(gbs_of(run) / run.ceiling_gbs) : json(nullptr)},
          {"jobs", std::move(jobs)},
          {"line", gdsio_line(run, run.all)}};
}

}  // namespace penstock::cli
