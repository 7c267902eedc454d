// penstock write: pseudo-random bytes from device memory into a file.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/sizes.hpp"
#include "cli/transfer.hpp"

namespace penstock::cli {
namespace {

struct write_options {
  std::string file;
  std::string device;
  std::uint64_t size = 0;
  std::uint64_t seed = 1;
  bool direct = false;
  bool verify = false;
  bool force = false;
};

struct write_outcome {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;
  bench::hasher memory;  // of the bytes copied back from the device before they were written
  status error;
};

status refuse_existing(const write_options& wanted) {
  struct stat info {};
  if (wanted.force || ::lstat(wanted.file.c_str(), &info) != 0) return {};
  return {errc::invalid_argument, fmt::format("{} exists; --force overwrites it", wanted.file)};
}

// Each piece has a seed of its own, so that no two are equal.
write_outcome write_pieces(const write_options& wanted, const engine& owner, const file& target, const device_buffer& memory,
                           std::uint64_t piece) {
  write_outcome out;
  progress_bar bar(wanted.file, wanted.size);
  for (std::uint64_t seed = wanted.seed; out.bytes < wanted.size; ++seed) {
    const std::uint64_t want = std::min(piece, wanted.size - out.bytes);
    auto filled = bench::fill_memory(owner, memory.data(), want, seed, interrupted);
    out.error = filled.error();
    if (out.error.ok() && wanted.verify) out.error = bench::hash_memory(out.memory, owner, memory.data(), want, interrupted);
    if (!out.error.ok()) break;
    const bench::stopwatch watch;
    const io_result done = finish(target.write_async(memory.data(), want, static_cast<std::int64_t>(out.bytes)), owner, bar, out.bytes);
    out.seconds += watch.seconds();
    out.cpu_seconds += watch.cpu_seconds();
    out.bytes += done.bytes_done;
    out.error = done.error;
    if (!out.error.ok()) break;
  }
  return out;
}

int report_unfinished(const write_options& wanted, const write_outcome& out) {
  fmt::print(stderr, "penstock: {} holds the first {} of {}\n", wanted.file, format_size(out.bytes), format_size(wanted.size));
  return interrupted() ? interrupted_exit_code() : fail(out.error);
}

int write_file(const write_options& wanted) {
  if (status error = refuse_existing(wanted); !error.ok()) return fail(error);
  auto owner = engine::create();
  if (!owner) return fail(owner.error());
  auto device = choose_device(*owner, wanted.device);
  if (!device) return fail(device.error());
  std::uint64_t piece = std::max<std::uint64_t>(1, piece_for(*device, wanted.size));
  auto memory = allocate_piece(*owner, *device, piece);
  if (!memory) return fail(memory.error());
  open_options how;
  how.read = false;
  how.write = how.create = how.truncate = true;
  how.direct_writes = wanted.direct;
  auto target = owner->open(wanted.file, how);
  if (!target) return fail(target.error());

  const engine_stats before = owner->stats();
  const write_outcome out = write_pieces(wanted, *owner, *target, *memory, piece);
  if (!out.error.ok()) return report_unfinished(wanted, out);
  const std::string path = bench::paths_between(before, owner->stats());
  if (status error = target->close(); !error.ok()) return fail(error);
  std::string verdict;
  if (wanted.verify) {
    auto found = bench::hash_of_file(wanted.file, 0, wanted.size, interrupted);
    if (!found) return interrupted() ? interrupted_exit_code() : fail(found.error());
    if (*found != out.memory.value())
      return fail({errc::internal, fmt::format("the bytes of {} differ from those in device memory", wanted.file)});
    verdict = ", verified";
  }
  fmt::print("{}: {} from {} in {:.3f} s, {:.2f} GB/s, {:.3f} CPU s/GB, path {}{}\n", wanted.file, format_size(out.bytes), device->name,
             out.seconds, bench::gigabytes_per_second(out.bytes, out.seconds),
             out.bytes > 0 ? out.cpu_seconds * 1e9 / static_cast<double>(out.bytes) : 0.0, path, verdict);
  return exit_success;
}

}  // namespace

void add_write(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<write_options>();
  CLI::App& sub = *app.add_subcommand("write", "Write pseudo-random bytes from device memory to a new file");
  sub.add_option("FILE", wanted->file, "File to make")->required();
  add_size_option(sub, "--size", wanted->size, "How much to write")->required();
  add_device_options(sub, wanted->device);
  sub.add_flag("--direct", wanted->direct, "Bypass the page cache");
  sub.add_flag("--verify", wanted->verify, "Compare a hash of the device bytes with one of the file read plainly");
  sub.add_option("--seed", wanted->seed, "Seed of the bytes");
  sub.add_flag("--force", wanted->force, "Overwrite a file that exists");
  sub.callback([wanted, &chosen] { chosen = [wanted] { return write_file(*wanted); }; });
}

}  // namespace penstock::cli
