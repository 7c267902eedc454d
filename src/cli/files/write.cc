// penstock write: writes pseudo-random bytes from device or host memory into a file.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "bench/meter.hpp"
#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "cli/common/command.hpp"
#include "cli/common/figures.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {
namespace {

struct write_options {
  std::string file;
  std::string device;
  std::uint64_t size = std::uint64_t{1} << 30;
  std::uint64_t seed = 1;
  bool direct = false;
  bool verify = false;
  bool force = false;
  output_options output;
};

status refuse_existing(const write_options& wanted) {
  struct stat info {};
  if (wanted.force || ::lstat(wanted.file.c_str(), &info) != 0) return {};
  return {errc::invalid_argument, fmt::format("{} exists; use --force to overwrite it", wanted.file)};
}

// Fills the memory and, with --verify, hashes its contents.
status fill(const write_options& wanted, const engine& owner, const transfer_memory& memory, std::uint64_t length, std::uint64_t seed,
            bench::hasher& hash) {
  {
    progress_bar bar("filling", describe_device(memory.where()), length);
    auto filled = bench::fill_memory(owner, memory.data(), length, seed, bar.counting(bench::piece_bytes));
    if (!filled) return filled.error();
  }
  if (!wanted.verify) return {};
  progress_bar bar("hashing", describe_device(memory.where()), length);
  return bench::hash_memory(hash, owner, memory.data(), length, bar.counting(bench::piece_bytes));
}

// Uses a different seed for each piece, so that no two pieces are equal. hash: the hash of the bytes, copied back from the device before
// the write.
figures write_pieces(const write_options& wanted, const engine& owner, const file& target, const transfer_memory& memory,
                     bench::hasher& hash) {
  figures out;
  const engine_stats before = owner.stats();
  for (std::uint64_t seed = wanted.seed; out.bytes < wanted.size && out.error.ok(); ++seed) {
    const std::uint64_t want = std::min(memory.size(), wanted.size - out.bytes);
    out.error = fill(wanted, owner, memory, want, seed, hash);
    if (!out.error.ok()) break;
    progress_bar bar("writing", wanted.file, wanted.size, out.bytes);
    const bench::stopwatch watch;
    const io_result done = finish(target.write_async(memory.data(), want, static_cast<std::int64_t>(out.bytes)), owner, bar, out.bytes);
    out.seconds += watch.seconds();
    out.cpu_seconds += watch.cpu_seconds();
    out.bytes += done.bytes_done;
    out.error = done.error;
  }
  out.path = bench::paths_between(before, owner.stats());
  return out;
}

// Compares the hash with that of the file, read without the engine.
status compare(const write_options& wanted, std::uint64_t expected, figures& out) {
  progress_bar bar("hashing", wanted.file, wanted.size);
  auto found = bench::hash_of_file(wanted.file, 0, wanted.size, bar.counting(bench::piece_bytes));
  if (!found) return found.error();
  out.equal = *found == expected;
  return *out.equal ? status() : status(errc::internal, fmt::format("the bytes in {} differ from those in memory", wanted.file));
}

int report(const write_options& wanted, const device_info& where, const figures& out) {
  if (wanted.output.json) {
    auto document = to_json(wanted.file, out);
    document["device"] = where.name;
    print_json(document);
  } else if (out.error.ok()) {
    say("{}: {}, from {}\n", wanted.file, describe(out), where.name);
  }
  if (out.error.ok()) return exit_success;
  if (out.bytes < wanted.size)
    complain("penstock: {} contains the first {} of {}\n", wanted.file, format_size(out.bytes), format_size(wanted.size));
  return interrupted() ? interrupted_exit_code() : fail(out.error);
}

int write_file(const write_options& wanted) {
  if (status error = refuse_existing(wanted); !error.ok()) return fail(error);
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  auto where = choose_memory(*owner, wanted.device);
  if (!where) return fail(where.error());
  transfer_memory memory(*owner, *where);
  if (status error = memory.make_room(wanted.size); !error.ok()) return fail(error);
  open_options how;
  how.read = false;
  how.write = how.create = how.truncate = true;
  how.direct_writes = wanted.direct;
  auto target = owner->open(wanted.file, how);
  if (!target) return fail(target.error());

  bench::hasher hash;
  figures out = write_pieces(wanted, *owner, *target, memory, hash);
  if (out.error.ok()) out.error = target->close();
  if (out.error.ok() && wanted.verify) out.error = compare(wanted, hash.value(), out);
  return report(wanted, *where, out);
}

}  // namespace

void add_write(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<write_options>();
  CLI::App& sub = *app.add_subcommand("write", "Write pseudo-random bytes from device or host memory to a new file");
  sub.add_option("FILE", wanted->file, "File to create")->required();
  add_size_option(sub, "--size", wanted->size, "How much to write (default 1GiB)");
  add_memory_options(sub, wanted->device);
  sub.add_flag("--direct", wanted->direct, "Bypass the page cache");
  sub.add_flag("--verify", wanted->verify, "Compare the hash of the bytes in memory with that of a plain read of the file");
  sub.add_option("--seed", wanted->seed, "Seed of the bytes (default 1)")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  sub.add_flag("--force", wanted->force, "Overwrite an existing file");
  add_output_options(sub, wanted->output);
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return write_file(*wanted); }; });
}

}  // namespace penstock::cli
