// penstock demo: makes a real file, reads it into device memory, compares the bytes, and tells how close to the hardware that was.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "bench/ceilings.hpp"
#include "bench/machine.hpp"
#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/json.hpp"
#include "cli/sizes.hpp"
#include "cli/transfer.hpp"
#include "cli/transfer_memory.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t least_bytes = std::uint64_t{16} << 20;

struct demo_options {
  std::uint64_t size = std::uint64_t{1} << 30;
  std::string directory;
  std::string device;
  output_options output;
};

// What is told: lines as they come, or one document at the end.
class demo_report {
 public:
  explicit demo_report(const output_options& output) : output_(output) {}
  // Of what is measured, and why nothing is; not with --quiet.
  template <class... Arguments>
  void remark(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    if (!output_.quiet) figure(text, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void figure(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    if (!output_.json) fmt::print(text, std::forward<Arguments>(arguments)...);
  }
  void end() const {
    if (output_.json) print_json(document);
  }
  nlohmann::json document{{"reads", nlohmann::json::array()}};

 private:
  output_options output_;
};

struct demo_run {
  io_result result;
  double seconds = 0;
  double cpu_seconds = 0;
  std::string path;
};

struct limit {
  std::string name;
  double gbs = 0;
};

// What the demonstration works with.
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
  // /var/tmp before /tmp: the latter often is memory, and the demonstration wants a disk.
  if (const char* named = std::getenv("TMPDIR"); named != nullptr && *named != '\0') return named;
  return ::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

// As much as was asked for, or half of the space that is free.
result<std::uint64_t> affordable_size(const demo_report& told, const std::string& directory, std::uint64_t wanted) {
  if (wanted < least_bytes) return status(errc::invalid_argument, fmt::format("--size must be {} or more", format_size(least_bytes)));
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
  run.path = bench::paths_between(before, on.owner.stats());
  if (run.result.ok() && run.result.bytes_done != on.sample.size()) run.result.error = status(errc::io, "the file became shorter");
  return run;
}

// errc::unsupported when pages stay, as they do on tmpfs.
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

status print_run(std::string_view title, const stage& on, const demo_run& run, const std::optional<limit>& against) {
  const auto found = hash_of_device(on);
  if (!found) return found.error();
  const double speed = bench::gigabytes_per_second(on.sample.size(), run.seconds);
  nlohmann::json row{{"name", title},
                     {"seconds", run.seconds},
                     {"gb_per_s", speed},
                     {"path", run.path},
                     {"cpu_s_per_gb", run.cpu_seconds * 1e9 / static_cast<double>(on.sample.size())},
                     {"ceiling", nullptr},
                     {"verified", *found == on.sample.hash()}};
  if (against) row["ceiling"] = {{"name", against->name}, {"gb_per_s", against->gbs}};
  on.told.document["reads"].push_back(std::move(row));
  on.told.figure("{}\n", title);
  on.told.figure("  speed        {:.2f} GB/s ({} in {:.3f} s)\n", speed, format_size(on.sample.size()), run.seconds);
  if (against) on.told.figure("  ceiling      {:.2f} GB/s, {}: reached {:.0f}%\n", against->gbs, against->name, 100 * speed / against->gbs);
  on.told.figure("  path         {}\n", run.path);
  on.told.figure("  CPU          {:.3f} s/GB\n", run.cpu_seconds * 1e9 / static_cast<double>(on.sample.size()));
  on.told.figure("  bytes        xxh64 {:016x} as written, {:016x} copied back from the device: {}\n\n", on.sample.hash(), *found,
                 *found == on.sample.hash() ? "equal" : "DIFFERENT");
  if (*found != on.sample.hash()) return {errc::internal, "the bytes in device memory are not those of the file"};
  return {};
}

// A read of a resident file can be no faster than the link, nor than all cores together copy out of the page cache.
result<limit> hot_limit(const stage& on) {
  auto cached = on.meter.cached_read(on.sample.path(), on.sample.size());
  if (!cached) return cached.error();
  if (cached->value < on.link.to_device_gbs) return limit{fmt::format("page cache to memory, {}", cached->how), cached->value};
  return limit{"pinned memory to device", on.link.to_device_gbs};
}

status show_hot(const stage& on) {
  auto most = hot_limit(on);
  if (!most) return most.error();
  // The first read also makes threads and pinned memory, so that only later ones show the speed.
  if (const demo_run first = read_once(on); !first.result.ok()) return first.result.error;
  if (status error = bench::clear_memory(on.owner, on.memory.data(), on.sample.size()); !error.ok()) return error;
  const demo_run run = read_once(on);
  if (!run.result.ok()) return run.result.error;
  return print_run("from the page cache to the device", on, run, *most);
}

status show_cold(const stage& on) {
  if (status error = drop_from_cache(on); !error.ok()) {
    if (error.code() != errc::unsupported) return error;
    on.told.remark("from the disk to the device: skipped, {}\n\n", error.message());
    return {};
  }
  if (status error = bench::clear_memory(on.owner, on.memory.data(), on.sample.size()); !error.ok()) return error;
  auto before = on.meter.direct_read(on.sample.path(), on.sample.size());
  const demo_run run = read_once(on);
  if (!run.result.ok()) return run.result.error;
  auto after = on.meter.direct_read(on.sample.path(), on.sample.size());
  std::optional<limit> most;
  if (before && after)
    most = limit{fmt::format("the disk, O_DIRECT, {}, mean of before and after", after->how), (before->value + after->value) / 2};
  if (!most) on.told.remark("(no ceiling of the disk: {})\n", (before ? after.error() : before.error()).message());
  return print_run("from the disk to the device", on, run, most);
}

status demonstrate(const demo_options& wanted, demo_report& told) {
  auto owner = engine::create();
  if (!owner) return owner.error();
  auto device = choose_device(*owner, wanted.device);
  if (!device) return device.error();
  const std::string directory = wanted.directory.empty() ? default_directory() : wanted.directory;
  told.remark("penstock {} demo\n", version());
  told.remark("  device       {}\n", describe_device(*device));
  if (const std::string reason = why_no_gpu(*owner); !reason.empty())
    told.remark("  {}\n  host:0 behaves like a device, in the memory of this machine\n", reason);
  auto size = affordable_size(told, directory, wanted.size);
  if (!size) return size.error();
  auto sample = make_file(directory, *size);
  if (!sample) return sample.error();
  told.remark("  file         {} of pseudo-random bytes, {} ({}), removed at the end\n\n", format_size(*size), sample->path(),
              bench::file_system_of(sample->path()));

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
  return show_cold(on);
}

int run_demo(const demo_options& wanted) {
  demo_report told(wanted.output);
  const status error = demonstrate(wanted, told);
  if (interrupted()) {
    fmt::print(stderr, "penstock: interrupted; the file was removed\n");
    return interrupted_exit_code();
  }
  if (!error.ok()) return fail(error);
  told.end();
  return exit_success;
}

}  // namespace

void add_demo(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<demo_options>();
  CLI::App& sub = *app.add_subcommand("demo", "Make a file, read it into device memory, compare the bytes and show the speed");
  add_size_option(sub, "--size", wanted->size, "Size of the file (default 1GiB)");
  sub.add_option("--dir", wanted->directory, "Where the file is made (default: $TMPDIR, /var/tmp, /tmp)")->type_name("DIR");
  add_device_options(sub, wanted->device);
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen = [wanted] { return run_demo(*wanted); }; });
}

}  // namespace penstock::cli
