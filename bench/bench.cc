#include "bench/bench.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/output.hpp"
#include "base/printable.hpp"
#include "bench/machine.hpp"
#include "bench/over_sizes.hpp"
#include "bench/report.hpp"
#include "bench/rows.hpp"
#include "penstock/penstock.hpp"
#include "sys/kernel.hpp"

namespace penstock::bench {
namespace {

constexpr std::uint64_t least_file_bytes = std::uint64_t{64} << 20;
constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

int complain(const options& settings, const status& error, int exit_code) {
  if (settings.failed) {
    settings.failed(error);
  } else {
    print_error(fmt::format("penstock: {}\n", printable_text(std::string(error.message()))));
  }
  return exit_code;
}

const row* find_row(std::string_view name) {
  const auto rows = all_rows();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const row& r) { return r.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

result<std::vector<const row*>> chosen_rows(const options& settings) {
  for (const std::string& name : settings.rows) {
    if (find_row(name) == nullptr)
      return status(errc::invalid_argument, fmt::format("there is no row \"{}\"; `penstock bench --list` shows them", name));
  }
  std::vector<const row*> chosen;
  for (const row& r : all_rows()) {
    const bool named = settings.rows.empty() || std::find(settings.rows.begin(), settings.rows.end(), r.name) != settings.rows.end();
    const bool kind = r.kind == row_kind::hot ? settings.hot : r.kind == row_kind::cold ? settings.cold : settings.hot && settings.cold;
    // A row that is named runs even if it is neither hot nor cold.
    if (named && (kind || (!settings.rows.empty() && r.kind == row_kind::neither))) chosen.push_back(&r);
  }
  return chosen;
}

std::uint64_t wanted_bytes(const options& settings) {
  if (settings.size_bytes > 0) return settings.size_bytes;
  return settings.quick ? std::uint64_t{256} << 20 : std::uint64_t{4} << 30;
}

std::string directory_of(const options& settings) {
  if (settings.file.empty()) return settings.directory;
  const std::size_t slash = settings.file.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : settings.file.substr(0, slash);
}

// Uses the requested part of the user's file if it exists; otherwise creates a file.
result<sample_file> find_or_make_sample(const options& settings) {
  constexpr std::uint64_t seed = 1;
  const std::uint64_t bytes = wanted_bytes(settings);
  if (settings.file.empty()) return sample_file::create_temporary(settings.directory, bytes, seed, settings.stop);
  struct stat info {};
  if (::stat(settings.file.c_str(), &info) != 0) {
    if (errno != ENOENT) return status::from_errno(errno, fmt::format("look at {}", settings.file));
    return sample_file::create_kept(settings.file, bytes, seed, settings.stop);
  }
  if (!S_ISREG(info.st_mode)) return status(errc::not_a_file, fmt::format("{} is not a regular file", settings.file));
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size < least_file_bytes) return status(errc::invalid_argument, fmt::format("{} is smaller than 64 MiB", settings.file));
  return sample_file::existing(settings.file, settings.size_bytes > 0 ? std::min(size, settings.size_bytes) : size);
}

result<device_info> find_device(const engine& owner, const std::string& name) {
  for (const device_info& device : owner.devices()) {
    if (name.empty() || device.name == name) return device;
  }
  const status why = owner.allocate(name, 1).error();  // the error lists the devices
  return why.ok() ? status(errc::not_found, fmt::format("\"{}\" is no device's name", name)) : why;
}

void tell(const options& settings, std::string_view doing, unsigned done, std::size_t rows) {
  if (settings.progress) settings.progress(doing, done, static_cast<unsigned>(rows));
}

report_header describe_machine(const engine& owner, const device_info& device, const sample_file& sample) {
  report_header header;
  header.version = version();
  header.date = utc_date();
  header.kernel = kernel_release();
  header.cpu = cpu_model();
  header.cores = usable_cores();
  header.device = device.name;
  header.device_description = device.description;
  header.driver = gpu_driver_version();
  header.file_system = file_system_of(sample.path());
  header.file_bytes = sample.size();
  if (const status cuda = owner.cuda_status(); !cuda.ok()) header.device_remark = cuda.message();
  return header;
}

std::string use_of_io_uring(bool is_allowed) {
  if (!is_allowed) return "switched off";
  const auto ring = sys::make_kernel()->make_ring(1);
  return ring ? "used" : fmt::format("not used ({})", ring.error().message());
}

std::vector<std::uint64_t> sizes_of(const options& settings) {
  if (!settings.over_sizes) return {};
  return settings.sizes.empty() ? usual_sizes(settings.quick) : settings.sizes;
}

// Runs the rows and prints each when it ends. Stops early on request.
std::vector<row_result> run_rows(const std::vector<const row*>& chosen, workbench& bench, const report_table* table) {
  std::vector<row_result> results;
  const std::size_t all = chosen.size() + sizes_of(bench.settings).size();
  for (const row* which : chosen) {
    if (bench.settings.stop && bench.settings.stop()) break;
    tell(bench.settings, which->name, static_cast<unsigned>(results.size()), all);
    row_result result = run_row(*which, bench);
    // A row that the user interrupted did not fail.
    if (bench.settings.stop && bench.settings.stop() && result.outcome == row_outcome::failed) break;
    tell(bench.settings, "", static_cast<unsigned>(results.size() + 1), all);
    if (table != nullptr) table->print_row(result);
    results.push_back(std::move(result));
  }
  return results;
}

// The same for calls of each size. Returns false if it was stopped before the end.
bool run_sizes(workbench& bench, std::size_t rows, const report_table* table, size_sweep& sweep) {
  const auto sizes = sizes_of(bench.settings);
  if (sizes.empty()) return true;
  if (table != nullptr) print_output("\ncalls by size, from one thread\n");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tell(bench.settings, fmt::format("{} KiB calls", sizes[i] >> 10), static_cast<unsigned>(rows + i), rows + sizes.size());
    const std::size_t known = sweep.points.size();
    if (!measure_size(bench, sizes[i], sweep).ok()) return false;
    tell(bench.settings, "", static_cast<unsigned>(rows + i + 1), rows + sizes.size());
    if (table != nullptr) table->print_points(std::span(sweep.points).subspan(known));
  }
  return measure_disk(bench, sweep).ok();
}

bool has_failed(const row_result& row) { return row.outcome == row_outcome::failed; }

result<bool> run_all(const options& settings, const std::vector<const row*>& chosen) {
  auto how = engine_options::from_environment();
  if (!how) return how.error();
  how->use_io_uring = how->use_io_uring && settings.use_io_uring;
  auto owner = engine::create(*how);
  if (!owner) return owner.error();
  auto device = find_device(*owner, settings.device);
  if (!device) return device.error();
  tell(settings, "making the file", 0, chosen.size());
  auto sample = find_or_make_sample(settings);
  if (!sample) return sample.error();
  tell(settings, "measuring ceilings", 0, chosen.size());
  report_header header = describe_machine(*owner, *device, *sample);
  header.io_uring = use_of_io_uring(how->use_io_uring);
  ceiling_meter meter(device->name);
  auto link = meter.link();
  if (!link) return link.error();
  header.link = *link;
  // The first pass brings the file into the page cache, the second measures.
  constexpr std::uint64_t probe = std::uint64_t{1} << 30;
  for (int pass = 0; pass < 2; ++pass) {
    auto cached = meter.cached_read(sample->path(), std::min(sample->size(), probe));
    if (!cached) return cached.error();
    header.cached_read = *cached;
  }

  auto source = owner->open(sample->path());
  if (!source) return source.error();
  auto cold_source = owner->open(sample->path(), {.cache = how->cache == cache_use::automatic ? cache_use::bypass : how->cache});
  if (!cold_source) return cold_source.error();
  auto target = owner->allocate(device->name, sample->size() + workbench::spare_bytes);
  if (!target) return target.error();
  tell(settings, "", 0, chosen.size());
  const report_table printed(settings.columns, settings.show_targets);
  const report_table* table = settings.json_file != "-" ? &printed : nullptr;
  if (table != nullptr) table->print_header(header), table->print_column_names();
  workbench bench{settings,
                  *owner,
                  meter,
                  device->name,
                  *link,
                  *sample,
                  std::move(*source),
                  std::move(*cold_source),
                  std::move(*target),
                  directory_of(settings),
                  {},
                  {}};
  const std::vector<row_result> results = run_rows(chosen, bench, table);
  size_sweep sweep;
  const bool stopped = results.size() < chosen.size() || !run_sizes(bench, chosen.size(), table, sweep);
  if (table != nullptr) print_summary(results, sweep, stopped);
  if (settings.complete || !settings.json_file.empty()) {
    nlohmann::json report = to_json(header, results, sweep, stopped);
    if (settings.complete) {
      if (status error = settings.complete(report, sample->path()); !error.ok()) return error;
    }
    if (!settings.json_file.empty()) {
      if (status error = write_json(settings.json_file, report); !error.ok()) return error;
    }
  }
  return !stopped && std::ranges::none_of(results, has_failed) && std::ranges::none_of(sweep.points, has_failed, &size_point::figures);
}

}  // namespace

std::vector<row_summary> rows() {
  std::vector<row_summary> out;
  for (const row& r : all_rows()) out.push_back({r.name, r.summary});
  return out;
}

int run(const options& settings) {
  auto chosen = chosen_rows(settings);
  if (!chosen) return complain(settings, chosen.error(), exit_usage);
  if (wanted_bytes(settings) < least_file_bytes)
    return complain(settings, {errc::invalid_argument, "the file must have 64 MiB or more"}, exit_usage);
  auto good = run_all(settings, *chosen);
  if (!good) return complain(settings, good.error(), exit_failed);
  return *good ? 0 : exit_failed;
}

}  // namespace penstock::bench
