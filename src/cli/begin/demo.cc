// penstock demo: creates a file, reads it into device memory, compares the bytes, and reports how close the speed was to the hardware
// limit.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/ceilings.hpp"
#include "bench/machine.hpp"
#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer.hpp"
#include "cli/common/transfer_memory.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t least_bytes = std::uint64_t{16} << 20;

struct demo_options {
  std::uint64_t size = std::uint64_t{1} << 30;
  std::string directory;
  std::string device;
  output_options output;
};

// Prints each line as soon as it is ready, or one JSON document at the end.
class demo_report {
 public:
  explicit demo_report(const output_options& output) : output_(output) {}
  // Prints what is being measured, or why it is skipped. Silent with --quiet.
  template <class... Arguments>
  void remark(fmt::format_string<shown_as<Arguments>...> text, const Arguments&... arguments) const {
    if (!output_.quiet) figure<Arguments...>(text, arguments...);
  }
  template <class... Arguments>
  void figure(fmt::format_string<shown_as<Arguments>...> text, const Arguments&... arguments) const {
    if (!output_.json) say<Arguments...>(text, arguments...);
  }
  void end() const {
    if (output_.json) print_json(document);
  }
  nlohmann::json document{{"reads", nlohmann::json::array()}, {"notes", nlohmann::json::array()}};

 private:
  output_options output_;
};

constexpr int most_runs = 3;

struct demo_run {
  io_result result;
  double seconds = 0;
  double cpu_seconds = 0;
  std::string path;
  std::uint64_t kept_bytes = 0;    // uncached bytes that were read through the page cache
  std::uint64_t direct_bytes = 0;  // uncached bytes that were read without it
};

struct limit {
  std::string name;
  double gbs = 0;
};

// State shared by all steps of the demonstration.
struct stage {
  demo_report& told;
  const engine& owner;
  device_info device;
  bench::ceiling_meter& meter;
  bench::link_ceiling link;
  const bench::sample_file& sample;
  const file& source;
  const device_buffer& memory;
};

std::string default_directory() {
  // Prefer /var/tmp to /tmp, which is often in memory; the demonstration needs a disk.
  if (const char* named = std::getenv("TMPDIR"); named != nullptr && *named != '\0') return named;
  return ::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

// Returns the requested size, or at most half of the free space.
result<std::uint64_t> affordable_size(const demo_report& told, const std::string& directory, std::uint64_t wanted) {
  if (wanted < least_bytes) return status(errc::invalid_argument, fmt::format("--size must be at least {}", format_size(least_bytes)));
  auto space = bench::free_space(directory);
  if (!space) return space.error();
  const std::uint64_t size = std::min(wanted, *space / 2 / least_bytes * least_bytes);
  if (size == 0) return status(errc::no_space, fmt::format("{} has only {} free", directory, format_size(*space)));
  if (size < wanted) told.remark("  {} has {} free, so the file is {}\n", directory, format_size(*space), format_size(size));
  return size;
}

result<bench::sample_file> make_file(const std::string& directory, std::uint64_t size) {
  progress_bar bar("filling", "a file in " + directory, size);
  return bench::sample_file::create_temporary(directory, size, 1, bar.counting(bench::piece_bytes));
}

demo_run read_once(const stage& on) {
  demo_run run;
  progress_bar bar("reading", on.sample.path(), on.sample.size());
  const engine_stats before = on.owner.stats();
  const bench::stopwatch watch;
  run.result = finish(on.source.read_async(on.memory.data(), on.sample.size(), 0), on.owner, bar, 0);
  run.seconds = watch.seconds();
  run.cpu_seconds = watch.cpu_seconds();
  const engine_stats after = on.owner.stats();
  run.path = bench::paths_between(before, after);
  run.kept_bytes = after.usage.kept_read_bytes - before.usage.kept_read_bytes;
  run.direct_bytes = after.usage.cold_read_bytes - before.usage.cold_read_bytes;
  if (run.result.ok() && run.result.bytes_done != on.sample.size())
    run.result.error = status(errc::io, "the file was truncated while being read");
  return run;
}

// Errors: unsupported if pages stay in the cache, for example on tmpfs.
status drop_from_cache(const stage& on) {
  const auto& path = on.sample.path();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return status::from_errno(errno, fmt::format("open {}", path));
  const int error_number = ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  if (error_number != 0) return status::from_errno(error_number, fmt::format("drop {} from the page cache", path));
  auto seen = on.owner.explain(on.source, on.device.name, on.sample.size(), 0);
  if (!seen) return seen.error();
  if (seen->cached_bytes == 0U) return {};
  const std::string left = seen->cached_bytes ? format_size(*seen->cached_bytes) : "an unknown part";
  return {errc::unsupported, fmt::format("{} of it cannot be dropped from the page cache", left)};
}

result<std::uint64_t> hash_of_device(const stage& on) {
  progress_bar bar("hashing", describe_device(on.device), on.sample.size());
  return bench::hash_of_memory(on.owner, on.memory.data(), on.sample.size(), bar.counting(bench::piece_bytes));
}

// Describes how uncached bytes were read; empty if all bytes were cached.
std::string cold_way(const demo_run& run) {
  const auto kept = format_size(run.kept_bytes);
  const auto direct = format_size(run.direct_bytes);
  if (run.direct_bytes == 0) return run.kept_bytes == 0 ? "" : ", through the page cache (kept for the next read)";
  if (run.kept_bytes == 0) return ", bypassing the page cache";
  return fmt::format(", {} through the page cache and {} bypassing it, which is faster here", kept, direct);
}

double speed_of(const stage& on, const demo_run& run) { return bench::gigabytes_per_second(on.sample.size(), run.seconds); }

// Prints the median run and the speeds of all runs.
status print_runs(std::string_view title, const stage& on, std::vector<demo_run> runs, const std::optional<limit>& against) {
  const auto found = hash_of_device(on);
  if (!found) return found.error();
  std::vector<double> speeds;
  std::string all;
  for (const auto& each : runs) {
    speeds.push_back(speed_of(on, each));
    all += fmt::format("{}{:.2f}", all.empty() ? "" : ", ", speeds.back());
  }
  std::sort(runs.begin(), runs.end(), [](const demo_run& one, const demo_run& other) { return one.seconds < other.seconds; });
  const auto& run = runs[runs.size() / 2];
  const double speed = speed_of(on, run);
  nlohmann::json row{{"name", title},
                     {"seconds", run.seconds},
                     {"gb_per_s", speed},
                     {"runs_gb_per_s", speeds},
                     {"path", run.path},
                     {"kept_bytes", run.kept_bytes},
                     {"direct_bytes", run.direct_bytes},
                     {"cpu_s_per_gb", run.cpu_seconds * 1e9 / static_cast<double>(on.sample.size())},
                     {"ceiling", nullptr},
                     {"verified", *found == on.sample.hash()}};
  if (against) row["ceiling"] = {{"name", against->name}, {"gb_per_s", against->gbs}};
  on.told.document["reads"].push_back(std::move(row));
  on.told.figure("{}\n", title);
  on.told.figure("  speed        {:.2f} GB/s ({} in {:.3f} s); all runs: {}\n", speed, format_size(on.sample.size()), run.seconds, all);
  if (against) on.told.figure("  ceiling      {:.2f} GB/s, {}: reached {:.0f}%\n", against->gbs, against->name, 100 * speed / against->gbs);
  on.told.figure("  path         {}{}\n", run.path, cold_way(run));
  on.told.figure("  CPU          {:.3f} s/GB\n", run.cpu_seconds * 1e9 / static_cast<double>(on.sample.size()));
  on.told.figure("  bytes        xxh64 {:016x} as written,\n", on.sample.hash());
  on.told.figure("               xxh64 {:016x} copied back from the device: {}\n\n", *found,
                 *found == on.sample.hash() ? "equal" : "DIFFERENT");
  if (*found != on.sample.hash()) return {errc::internal, "the bytes in device memory differ from the file"};
  return {};
}

// Returns the limit for reads of a cached file: the slower of the link and all cores copying from the page cache.
result<limit> hot_limit(const stage& on) {
  auto cached = on.meter.cached_read(on.sample.path(), on.sample.size());
  if (!cached) return cached.error();
  if (cached->value < on.link.to_device_gbs) return limit{fmt::format("page cache to memory, {}", cached->how), cached->value};
  return limit{"pinned memory to device", on.link.to_device_gbs};
}

status show_hot(const stage& on) {
  auto most = hot_limit(on);
  if (!most) return most.error();
  // The first read also creates threads and pinned memory, so only later reads are representative.
  if (const demo_run first = read_once(on); !first.result.ok()) return first.result.error;
  if (status error = bench::clear_memory(on.owner, on.memory.data(), on.sample.size()); !error.ok()) return error;
  std::vector<demo_run> runs;
  while (runs.size() < most_runs && !interrupted()) {
    runs.push_back(read_once(on));
    if (!runs.back().result.ok()) return runs.back().result.error;
  }
  return print_runs("from the page cache to the device", on, std::move(runs), *most);
}

status show_cold(const stage& on) {
  if (status error = drop_from_cache(on); !error.ok()) {
    if (error.code() != errc::unsupported) return error;
    on.told.remark("from the disk to the device: skipped, {}\n\n", error.message());
    return {};
  }
  if (status error = bench::clear_memory(on.owner, on.memory.data(), on.sample.size()); !error.ok()) return error;
  std::vector<demo_run> runs;
  std::vector<bench::ceiling> limits;
  status no_limit;
  while (runs.size() < most_runs && !interrupted()) {
    // Measured before and after each run, because the speed of a shared disk varies.
    auto most = on.meter.direct_read(on.sample.path(), on.sample.size());
    most ? limits.push_back(*most) : void(no_limit = most.error());
    if (runs.size() > 0) {
      if (status error = drop_from_cache(on); !error.ok()) return error;
    }
    runs.push_back(read_once(on));
    if (!runs.back().result.ok()) return runs.back().result.error;
  }
  if (auto most = on.meter.direct_read(on.sample.path(), on.sample.size())) limits.push_back(*most);
  std::optional<limit> most;
  if (!limits.empty()) {
    double sum = 0;
    for (const auto& each : limits) sum += each.value;
    most = limit{fmt::format("disk with O_DIRECT, mean of {}", limits.size()), sum / static_cast<double>(limits.size())};
  } else {
    on.told.remark("(the disk's ceiling is unknown: {})\n", no_limit.message());
  }
  return print_runs("from the disk to the device", on, std::move(runs), most);
}

// Prints what limits this machine, in the wording of `penstock check`.
void show_notes(const stage& on) {
  const auto seen = on.owner.explain(on.source, on.device.name, on.sample.size(), 0);
  if (!seen) return;
  for (const auto& each : seen->remarks) {
    if (each.starts_with("no GPU")) continue;  // already printed
    on.told.document["notes"].push_back(each);
    on.told.remark("note: {}\n", each);
  }
}

// Returns the name under which the user can run this command again.
std::string own_name() {
  std::error_code problem;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (problem) return "penstock";
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    if (fmt::format(":{}:", path).find(fmt::format(":{}:", self.parent_path().string())) != std::string::npos) return self.filename();
  }
  const auto here = std::filesystem::proximate(self, problem);
  return problem || here.native().size() > self.native().size() ? self : here;
}

void show_next(const demo_report& told) {
  const auto name = own_name();
  told.remark("\nNext steps:\n");
  told.remark("  {} check\n      what slows this machine down, and the command that fixes it\n", name);
  told.remark("  {} read FILE --verify\n      one of your files, read into device memory\n", name);
  told.remark("  {} bench --quick\n      this machine's ceilings, and how close Penstock comes to them\n", name);
  told.remark("  docs/guides/cpp.md, docs/guides/numpy.md\n      the same from C++ and Python\n");
}

status demonstrate(const demo_options& wanted, demo_report& told) {
  auto owner = make_engine();
  if (!owner) return owner.error();
  auto device = choose_device(*owner, wanted.device);
  if (!device) return device.error();
  const std::string directory = wanted.directory.empty() ? default_directory() : wanted.directory;
  told.remark("penstock {} demo\n", version());
  told.remark("  device       {}\n", describe_device(*device));
  if (const std::string reason = why_no_gpu(*owner); !reason.empty())
    told.remark("  {}\n  host:0 simulates a device in this machine's memory\n", reason);
  auto size = affordable_size(told, directory, wanted.size);
  if (!size) return size.error();
  auto sample = make_file(directory, *size);
  if (!sample) return sample.error();
  told.remark("  file         {} of pseudo-random bytes, removed at the end:\n               {} ({})\n\n", format_size(*size),
              sample->path(), bench::file_system_of(sample->path()));

  told.document["device"] = device->name;
  told.document["bytes"] = *size;
  told.document["file_system"] = bench::file_system_of(sample->path());

  auto source = owner->open(sample->path());
  if (!source) return source.error();
  auto memory = owner->allocate(device->name, *size);
  if (!memory) return memory.error();
  bench::ceiling_meter meter(device->name);
  auto link = meter.link();
  if (!link) return link.error();
  const stage on{told, *owner, *device, meter, *link, *sample, *source, *memory};
  if (status error = show_hot(on); !error.ok()) return error;
  if (interrupted()) return {errc::cancelled, "interrupted"};
  if (status error = show_cold(on); !error.ok()) return error;
  show_notes(on);
  show_next(told);
  return {};
}

int run_demo(const demo_options& wanted) {
  std::signal(SIGPIPE, SIG_IGN);  // if the reader of a pipe exits early, still remove the file
  demo_report told(wanted.output);
  const status error = demonstrate(wanted, told);
  if (interrupted()) {
    complain("penstock: interrupted; the file was removed\n");
    return interrupted_exit_code();
  }
  if (!error.ok()) return fail(error);
  told.end();
  return exit_success;
}

}  // namespace

void add_demo(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<demo_options>();
  CLI::App& sub = *app.add_subcommand("demo", "Create a file, read it into device memory, compare the bytes and show the speed");
  add_size_option(sub, "--size", wanted->size, "Size of the file (default 1GiB)");
  sub.add_option("--dir", wanted->directory, "Folder for the file (default: $TMPDIR, /var/tmp or /tmp)")->type_name("DIR");
  add_device_options(sub, wanted->device);
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return run_demo(*wanted); }; });
}

}  // namespace penstock::cli
