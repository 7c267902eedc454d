#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bench/meter.hpp"
#include "bench/row_functions.hpp"
#include "bench/row_tools.hpp"

namespace penstock::bench {
namespace {

// --- writes

result<sample_file*> scratch_file(workbench& bench) {
  if (!bench.scratch) {
    auto made = sample_file::create_temporary(bench.directory, bench.sample.size(), 99, bench.settings.stop);
    if (!made) return made.error();
    bench.scratch.emplace(std::move(*made));
  }
  return &*bench.scratch;
}

status verify_written(const workbench& bench, const std::string& path, std::uint64_t length, std::uint64_t expected) {
  auto found = hash_of_file(path, 0, length, bench.settings.stop);
  if (!found) return found.error();
  return expected == *found ? status() : differ("the bytes of the file and the bytes that were in device memory");
}

struct write_plan {
  std::string path;
  open_options how;
  unsigned repeats = 1;
  bool warm_up = false;
  std::function<status()> prepare;  // called before each run, before the file is opened
};

// Overwrites the file from device memory. The last run writes new bytes, which are compared.
result<row_result> write_whole(workbench& bench, const write_plan& how) {
  const std::uint64_t length = bench.sample.size();
  std::optional<std::uint64_t> expected;
  file target;
  measurement plan{how.repeats, how.warm_up, {}, {}};
  plan.prepare = [&](bool last) -> status {
    if (last || !expected) {
      auto hash = fill_memory(bench.owner, bench.target.data(), length, bench.next_seed++, bench.settings.stop);
      if (!hash) return hash.error();
      expected = *hash;
    }
    if (status error = how.prepare(); !error.ok()) return error;
    auto opened = bench.owner.open(how.path, how.how);
    if (!opened) return opened.error();
    target = std::move(*opened);
    return {};
  };
  plan.body = [&](sample&) { return moved_all(target.write(bench.target.data(), length, 0), length); };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  if (status error = target.close(); !error.ok()) return error;
  row_result out = to_result(bench, *run, length);
  if (status error = verify_written(bench, how.path, length, *expected); !error.ok()) return error;
  out.verified = true;
  return out;
}

open_options for_writing(bool direct) {
  open_options how;
  how.read = false;
  how.write = true;
  how.direct_writes = direct;
  return how;
}

// A file name whose file is removed before each use and by the destructor.
class passing_file {
 public:
  explicit passing_file(const workbench& bench) : path_(fmt::format("{}/penstock-new-{}", bench.directory, ::getpid())) {}
  passing_file(const passing_file&) = delete;
  passing_file& operator=(const passing_file&) = delete;
  ~passing_file() { ::unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] status remove() const {
    if (::unlink(path_.c_str()) == 0 || errno == ENOENT) return {};
    return status::from_errno(errno, fmt::format("remove {}", path_));
  }

 private:
  std::string path_;
};

// --- start and memory

struct first_read {
  double seconds = 0;
  std::string path;
};

// Times the creation of an engine and its first read.
result<first_read> time_first_read(const workbench& bench) {
  constexpr std::uint64_t length = 4 * kib;
  const stopwatch watch;
  auto fresh = engine::create();
  if (!fresh) return fresh.error();
  auto opened = fresh->open(bench.sample.path());
  if (!opened) return opened.error();
  auto memory = fresh->allocate(bench.device, length);
  if (!memory) return memory.error();
  const io_result done = opened->read(memory->data(), length, 0);
  const double seconds = watch.seconds();
  if (status error = moved_all(done, length); !error.ok()) return error;
  auto found = hash_of_memory(*fresh, memory->data(), length);
  if (!found) return found.error();
  auto expected = hash_of_file(bench.sample.path(), 0, length);
  if (!expected) return expected.error();
  if (*found != *expected) return differ("the first 4 KiB");
  return first_read{seconds, paths_between({}, fresh->stats())};
}

}  // namespace

result<row_result> write_hot(workbench& bench) {
  auto scratch = scratch_file(bench);
  if (!scratch) return scratch.error();
  const std::string& path = (*scratch)->path();
  const std::uint64_t size = bench.sample.size();
  const auto resident_and_clean = [&]() -> status {
    if (status error = make_hot(bench, path, size); !error.ok()) return error;
    return flush(bench, path);
  };
  if (status error = resident_and_clean(); !error.ok()) return error;
  drifting raw;
  raw.add(bench.meter.cached_write(path, probe_bytes(bench)));
  auto out = write_whole(bench, {path, for_writing(false), hot_repeats(bench), true, resident_and_clean});
  if (!out) return out;
  raw.add(bench.meter.cached_write(path, probe_bytes(bench)));
  compare_drifting(*out, "raw cached pwrite", raw);
  return out;
}

result<row_result> write_direct(workbench& bench) {
  auto scratch = scratch_file(bench);
  if (!scratch) return scratch.error();
  const std::string& path = (*scratch)->path();
  const std::uint64_t size = bench.sample.size();
  if (const status error = make_cold(path, size); error.code() == errc::unsupported) return skip(std::string(error.message()));
  drifting raw;
  raw.add(bench.meter.direct_write(path, probe_bytes(bench)));
  auto out = write_whole(bench, {path, for_writing(true), cold_repeats(bench), false, [&] { return make_cold(path, size); }});
  if (!out) return out;
  raw.add(bench.meter.direct_write(path, probe_bytes(bench)));
  compare_drifting(*out, "raw O_DIRECT write", raw);
  return out;
}

result<row_result> write_new(workbench& bench) {
  const passing_file fresh(bench);
  const auto run = [&](bool direct) {
    open_options how = for_writing(direct);
    how.create = true;
    return write_whole(bench, {fresh.path(), how, cold_repeats(bench), false, [&] { return fresh.remove(); }});
  };
  auto direct = run(true);
  if (!direct) return direct;
  auto cached = run(false);
  if (!cached) return cached;
  cached->notes.push_back(
      fmt::format("with direct_writes: {:.2f} GB/s, {:.3f} CPU s/GB, {}, verified", direct->gbs(), direct->cpu_per_gb(), direct->path));
  return cached;
}

result<row_result> start(workbench& bench) {
  if (status error = make_hot(bench, bench.sample.path(), bench.sample.size()); !error.ok()) return error;
  std::vector<first_read> runs;
  for (unsigned i = 0; i < hot_repeats(bench); ++i) {
    if (stop_asked(bench)) return stopped();
    auto run = time_first_read(bench);
    if (!run) return run.error();
    runs.push_back(std::move(*run));
  }
  const double first_ms = runs.front().seconds * 1e3;
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end(), [](const first_read& a, const first_read& b) { return a.seconds < b.seconds; });
  row_result out;
  out.seconds = middle->seconds;
  out.path = middle->path;
  out.bytes = 4 * kib;
  out.verified = true;
  out.pinned_bytes = bench.owner.stats().pinned_bytes;
  out.notes.push_back(fmt::format(
      "{:.2f} ms from engine::create to the end of the first 4 KiB read, open and allocate included; first of {} engines: {:.2f} ms",
      out.seconds * 1e3, runs.size(), first_ms));
  return out;
}

result<row_result> pinned(workbench& bench) {
  auto fresh = engine::create();
  if (!fresh) return fresh.error();
  auto opened = fresh->open(bench.sample.path());
  if (!opened) return opened.error();
  auto memory = fresh->allocate(bench.device, 4 * kib);
  if (!memory) return memory.error();
  if (const std::uint64_t early = fresh->stats().pinned_bytes; early != 0) {
    return status(errc::internal, fmt::format("{} bytes are pinned before the first transfer", early));
  }
  const engine_stats stats = bench.owner.stats();
  row_result out;
  out.verified = true;  // no bytes to compare
  out.path = "none";
  out.pinned_bytes = stats.pinned_peak_bytes;
  out.notes.push_back(fmt::format("0 before the first transfer, {} MiB now, {} MiB at most during the rows above", stats.pinned_bytes / mib,
                                  stats.pinned_peak_bytes / mib));
  return out;
}

}  // namespace penstock::bench
