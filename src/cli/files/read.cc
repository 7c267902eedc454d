// penstock read: reads files into device or host memory.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/common/command.hpp"
#include "cli/common/figures.hpp"
#include "cli/common/hash_source.hpp"
#include "cli/common/inputs.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t to_the_end = std::numeric_limits<std::uint64_t>::max();

struct read_options {
  std::vector<std::string> files;
  std::string device;
  std::uint64_t offset = 0;
  std::uint64_t length = to_the_end;
  bool verify = false;
  std::string path = "automatic";
  std::string prefer = "automatic";
  std::string cache = "auto";
  unsigned repeat = 1;
  output_options output;
};

struct read_setup {
  const read_options& wanted;
  const engine& owner;
  io_options io;
  transfer_memory memory;  // reused for all files and repeats
};

result<io_options> io_options_of(const read_options& wanted) {
  auto path = parse_path_kind(wanted.path);
  if (!path) return path.error();
  auto prefer = parse_preference(wanted.prefer);
  if (!prefer) return prefer.error();
  auto cache = parse_cache_use(wanted.cache);
  if (!cache) return cache.error();
  io_options io;
  io.path = *path;
  io.prefer = *prefer;
  io.cache = *cache;
  return io;
}

// The hashes of the file and of the memory so far.
struct comparison {
  bench::hasher file, memory;

  status add(const read_setup& setup, const penstock::file& source, std::uint64_t offset, std::uint64_t length) {
    const std::string& path = source.path();
    progress_bar bar("hashing", path, 2 * length);
    const auto stop = bar.counting(bench::piece_bytes);
    status error = hash_source(file, source, offset, length, stop);
    if (!error.ok()) return error;
    return bench::hash_memory(memory, setup.owner, setup.memory.data(), length, stop);
  }
  [[nodiscard]] bool equal() const { return file.value() == memory.value(); }
};

// Reads the range in pieces into the same memory. After a failure, the figures cover the pieces that were read.
figures read_pieces(const read_setup& setup, const file& source, std::uint64_t length) {
  figures out;
  comparison check;
  const engine_stats before = setup.owner.stats();
  while (out.bytes < length && out.error.ok()) {
    const std::uint64_t offset = setup.wanted.offset + out.bytes;
    const std::uint64_t want = std::min(setup.memory.size(), length - out.bytes);
    // Clear the memory, so that data from the previous read cannot be mistaken for data from this one.
    if (setup.wanted.verify) out.error = bench::clear_memory(setup.owner, setup.memory.data(), want);
    if (!out.error.ok()) break;
    io_result done;
    {
      progress_bar bar("reading", source.path(), length, out.bytes);
      const bench::stopwatch watch;
      done = finish(source.read_async(setup.memory.data(), want, static_cast<std::int64_t>(offset), setup.io), setup.owner, bar, out.bytes);
      out.seconds += watch.seconds();
      out.cpu_seconds += watch.cpu_seconds();
    }
    out.bytes += done.bytes_done;
    out.error = done.error;
    if (out.error.ok() && setup.wanted.verify) out.error = check.add(setup, source, offset, done.bytes_done);
    if (done.bytes_done < want) break;  // the file was truncated, or the error gives the reason
  }
  out.path = bench::paths_between(before, setup.owner.stats());
  if (out.error.ok() && setup.wanted.verify) out.equal = check.equal();
  return out;
}

// Prints a remark if the range extends past the end of the file.
void remark_on_end(const read_options& wanted, const std::string& name, std::uint64_t size) {
  const bool begins_past = wanted.offset >= size && wanted.offset > 0;
  const bool is_cut = wanted.length != to_the_end && wanted.length > size - std::min(size, wanted.offset);
  if (wanted.output.quiet || (!begins_past && !is_cut)) return;
  complain("penstock: {} is only {} bytes long: {}\n", name, size,
           begins_past ? fmt::format("there is nothing to read at or after offset {}", wanted.offset)
                       : fmt::format("{} of the {} bytes exist", size - wanted.offset, wanted.length));
}

figures failed(const status& error) {
  figures out;
  out.error = error;
  return out;
}

figures read_file(read_setup& setup, const std::string& name) {
  auto source = setup.owner.open(name);
  if (!source) return failed(source.error());
  auto size = source->size();
  if (!size) return failed(size.error());
  remark_on_end(setup.wanted, shown_name(name), *size);
  const std::uint64_t length = *size > setup.wanted.offset ? std::min(*size - setup.wanted.offset, setup.wanted.length) : 0;
  if (length == 0) {
    figures nothing;
    nothing.path = "none";
    if (setup.wanted.verify) nothing.equal = true;
    return nothing;
  }
  if (status error = setup.memory.make_room(length); !error.ok()) return failed(error);
  figures out = read_pieces(setup, *source, length);
  if (out.equal == false) out.error = {errc::internal, fmt::format("the bytes in device memory differ from those in {}", name)};
  return out;
}

// The results of all reads and their totals.
struct read_report {
  std::vector<std::pair<std::string, figures>> reads;  // only with --json, which prints them at the end
  std::size_t count = 0;
  figures sum;
  bool all_good = true;
};

void add(read_report& report, const std::string& name, const figures& told, const output_options& output) {
  report.sum.bytes += told.bytes;
  report.sum.seconds += told.seconds;
  report.sum.cpu_seconds += told.cpu_seconds;
  report.all_good = report.all_good && told.error.ok();
  ++report.count;
  if (output.json) report.reads.emplace_back(name, told);
  if (!output.json && (told.error.ok() || told.bytes > 0)) say("{}: {}\n", name, describe(told));
  if (interrupted()) {
    complain("penstock: interrupted: {} of {} were read\n", format_size(told.bytes), name);
  } else if (!told.error.ok()) {
    fail(told.error);
  }
}

void print_as_json(const read_report& report, const device_info& where) {
  auto reads = nlohmann::json::array();
  for (const auto& [name, told] : report.reads) reads.push_back(to_json(name, told));
  print_json({{"device", where.name}, {"reads", std::move(reads)}});
}

void print_remarks(const read_options& wanted, const engine& owner, const device_info& where) {
  if (wanted.output.json || wanted.output.quiet) return;
  say("to {}\n", describe_device(where));
  if (const std::string reason = why_no_gpu(owner); wanted.device.empty() && !reason.empty()) say("{}\n", reason);
}

void read_each(read_setup& setup, const std::vector<input>& inputs, read_report& report) {
  for (unsigned pass = 0; pass < setup.wanted.repeat; ++pass) {
    for (const input& each : inputs) {
      if (interrupted()) return;
      const figures told = each.error.ok() ? read_file(setup, each.name) : failed(each.error);
      add(report, each.name, told, setup.wanted.output);
    }
  }
}

int read_all(const read_options& wanted) {
  const auto io = io_options_of(wanted);
  if (!io) return fail(io.error());
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  auto where = choose_memory(*owner, wanted.device);
  if (!where) return fail(where.error());
  print_remarks(wanted, *owner, *where);
  read_setup setup{wanted, *owner, *io, transfer_memory(*owner, *where)};
  read_report report;
  read_each(setup, expand_folders(wanted.files), report);
  if (wanted.output.json) {
    print_as_json(report, *where);
  } else if (report.count > 1 && !wanted.output.quiet) {
    say("{} reads: {}\n", report.count, describe(report.sum));
  }
  if (interrupted()) return interrupted_exit_code();
  return report.all_good ? exit_success : exit_failure;
}

}  // namespace

void add_read(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<read_options>();
  CLI::App& sub = *app.add_subcommand("read", "Read files into device or host memory");
  sub.add_option("FILE", wanted->files, "Files or folders to read")->required();
  add_memory_options(sub, wanted->device);
  add_size_option(sub, "--offset", wanted->offset, "Start at this offset in each file");
  add_size_option(sub, "--length", wanted->length, "Read this much of each file (default: to its end)");
  sub.add_flag("--verify", wanted->verify, "Copy the bytes back and compare their hash with that of a plain read");
  const auto paths = path_names();
  sub.add_option("--path", wanted->path, "Force this path")->check(one_of({paths.begin(), paths.end()}));
  sub.add_option("--prefer", wanted->prefer, "speed: the fastest path; cpu: the path with the fewest CPU seconds per byte")
      ->check(one_of({"automatic", "speed", "cpu"}));
  add_cache_option(sub, wanted->cache);
  sub.add_option("--repeat", wanted->repeat, "Number of times to read everything (default 1)")->check(whole_number(1));
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return read_all(*wanted); }; });
}

}  // namespace penstock::cli
