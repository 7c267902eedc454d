// penstock read: files into device memory.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "bench/meter.hpp"
#include "bench/verify.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/sizes.hpp"
#include "cli/transfer.hpp"

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
  unsigned repeat = 1;
};

struct read_setup {
  const read_options& wanted;
  engine owner;
  device_info device;
  io_options io;
};

struct read_outcome {
  std::uint64_t bytes = 0;
  double seconds = 0;      // of the transfers alone
  double cpu_seconds = 0;  // likewise
  std::string path;
  std::optional<bool> equal;  // with --verify
  status error;
};

result<read_setup> set_up(const read_options& wanted) {
  auto owner = engine::create();
  if (!owner) return owner.error();
  auto device = choose_device(*owner, wanted.device);
  if (!device) return device.error();
  auto path = parse_path_kind(wanted.path);
  if (!path) return path.error();
  auto prefer = parse_preference(wanted.prefer);
  if (!prefer) return prefer.error();
  io_options io;
  io.path = *path;
  io.prefer = *prefer;
  return read_setup{wanted, std::move(*owner), std::move(*device), io};
}

// Both hashes of what has been read so far.
struct comparison {
  bench::hasher file, memory;

  status add(const read_setup& setup, const std::string& path, const void* bytes, std::uint64_t offset, std::uint64_t length) {
    if (status error = bench::hash_file(file, path, offset, length, interrupted); !error.ok()) return error;
    return bench::hash_memory(memory, setup.owner, bytes, length, interrupted);
  }
  [[nodiscard]] bool equal() const { return file.value() == memory.value(); }
};

// Reads the range in pieces into one buffer. On failure the outcome still tells what was read.
read_outcome read_pieces(const read_setup& setup, const file& source, const device_buffer& memory, std::uint64_t piece,
                         std::uint64_t length) {
  read_outcome out;
  progress_bar bar(source.path(), length);
  comparison check;
  const engine_stats before = setup.owner.stats();
  while (out.bytes < length && out.error.ok()) {
    const std::uint64_t offset = setup.wanted.offset + out.bytes;
    const std::uint64_t want = std::min(piece, length - out.bytes);
    const bench::stopwatch watch;
    const io_result done =
        finish(source.read_async(memory.data(), want, static_cast<std::int64_t>(offset), setup.io), setup.owner, bar, out.bytes);
    out.seconds += watch.seconds();
    out.cpu_seconds += watch.cpu_seconds();
    out.bytes += done.bytes_done;
    out.error = done.error;
    if (out.error.ok() && setup.wanted.verify) out.error = check.add(setup, source.path(), memory.data(), offset, done.bytes_done);
    if (done.bytes_done < want) break;  // the file became shorter, or the error says why
  }
  out.path = bench::paths_between(before, setup.owner.stats());
  if (out.error.ok() && setup.wanted.verify) out.equal = check.equal();
  return out;
}

read_outcome read_file(const read_setup& setup, const std::string& name) {
  read_outcome out;
  auto source = setup.owner.open(name);
  if (!source) return {.path = {}, .equal = {}, .error = source.error()};
  auto size = source->size();
  if (!size) return {.path = {}, .equal = {}, .error = size.error()};
  const std::uint64_t length = *size > setup.wanted.offset ? std::min(*size - setup.wanted.offset, setup.wanted.length) : 0;
  if (length == 0) {
    if (setup.wanted.verify) out.equal = true;
    out.path = "none";
    return out;
  }
  std::uint64_t piece = piece_for(setup.device, length);
  auto memory = allocate_piece(setup.owner, setup.device, piece);
  if (!memory) return {.path = {}, .equal = {}, .error = memory.error()};
  return read_pieces(setup, *source, *memory, piece, length);
}

void print_outcome(const std::string& name, const read_outcome& out) {
  fmt::print("{}: {} in {:.3f} s, {:.2f} GB/s, {:.3f} CPU s/GB, path {}{}\n", name, format_size(out.bytes), out.seconds,
             bench::gigabytes_per_second(out.bytes, out.seconds),
             out.bytes > 0 ? out.cpu_seconds * 1e9 / static_cast<double>(out.bytes) : 0.0, out.path,
             !out.equal   ? ""
             : *out.equal ? ", verified"
                          : ", WRONG BYTES");
}

int read_all(const read_options& wanted) {
  auto setup = set_up(wanted);
  if (!setup) return fail(setup.error());
  fmt::print("to {}\n", describe_device(setup->device));
  if (const std::string reason = why_no_gpu(setup->owner); wanted.device.empty() && !reason.empty()) fmt::print("{}\n", reason);
  int exit_code = exit_success;
  for (unsigned pass = 0; pass < wanted.repeat; ++pass) {
    for (const std::string& name : wanted.files) {
      if (interrupted()) return interrupted_exit_code();
      const read_outcome out = read_file(*setup, name);
      if (out.error.ok() || out.bytes > 0) print_outcome(name, out);
      if (interrupted()) {
        fmt::print(stderr, "penstock: interrupted: {} of {} were read\n", format_size(out.bytes), name);
        return interrupted_exit_code();
      }
      if (!out.error.ok()) exit_code = fail(out.error);
      if (out.equal == false) exit_code = fail({errc::internal, fmt::format("the bytes in device memory differ from those of {}", name)});
    }
  }
  return exit_code;
}

}  // namespace

void add_read(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<read_options>();
  CLI::App& sub = *app.add_subcommand("read", "Read files into device memory");
  sub.add_option("FILE", wanted->files, "Files to read")->required();
  add_device_options(sub, wanted->device);
  add_size_option(sub, "--offset", wanted->offset, "Start here in each file");
  add_size_option(sub, "--length", wanted->length, "Read this much of each file (default: to its end)");
  sub.add_flag("--verify", wanted->verify, "Compare a hash of the bytes copied back with one of the file read plainly");
  const auto paths = path_names();
  sub.add_option("--path", wanted->path, "Force a path")->check(CLI::IsMember(std::vector<std::string>(paths.begin(), paths.end())));
  sub.add_option("--prefer", wanted->prefer, "What to spend")->check(CLI::IsMember({"automatic", "speed", "cpu"}));
  sub.add_option("--repeat", wanted->repeat, "Read everything this many times")->check(CLI::PositiveNumber);
  sub.callback([wanted, &chosen] { chosen = [wanted] { return read_all(*wanted); }; });
}

}  // namespace penstock::cli
