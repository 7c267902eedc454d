#include "bench/row_tools.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/meter.hpp"
#include "bench/open_file.hpp"
#include "bench/page_cache.hpp"
#include "sys/kernel.hpp"

namespace penstock::bench {
namespace {

result<sample> run_once(workbench& bench, const measurement& plan, bool last) {
  if (stop_asked(bench)) return stopped();
  if (status error = plan.prepare(last); !error.ok()) return error;
  sample run;
  const engine_stats before = bench.owner.stats();
  const stopwatch watch;
  const status error = plan.body(run);
  run.seconds = watch.seconds();
  run.cpu_seconds = watch.cpu_seconds();
  if (!error.ok()) return error;
  run.path = paths_between(before, bench.owner.stats());
  return run;
}

double percentile(std::vector<double> values, double part) {
  const auto index = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

result<std::uint64_t> sample_hash(workbench& bench, file_range range) {
  const std::pair key(range.offset, range.length);
  if (const auto known = bench.file_hashes.find(key); known != bench.file_hashes.end()) return known->second;
  auto hash = hash_of_file(bench.sample.path(), range.offset, range.length, bench.settings.stop);
  if (hash) bench.file_hashes.emplace(key, *hash);
  return hash;
}

}  // namespace

status stopped() { return {errc::cancelled, "interrupted"}; }

bool stop_asked(const workbench& bench) { return bench.settings.stop && bench.settings.stop(); }

sample median_run(std::vector<sample> runs) {
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end(), [](const sample& a, const sample& b) { return a.seconds < b.seconds; });
  return std::move(*middle);
}

result<sample> measure(workbench& bench, const measurement& plan) {
  if (plan.warm_up) {
    if (auto run = run_once(bench, plan, false); !run) return run.error();
  }
  std::vector<sample> runs;
  for (unsigned i = 0; i < plan.repeats; ++i) {
    auto run = run_once(bench, plan, i + 1 == plan.repeats);
    if (!run) return run.error();
    runs.push_back(std::move(*run));
  }
  return median_run(std::move(runs));
}

unsigned hot_repeats(const workbench& bench) { return bench.settings.repeats > 0 ? bench.settings.repeats : 5; }
unsigned cold_repeats(const workbench& bench) { return bench.settings.repeats > 0 ? bench.settings.repeats : 3; }

row_result to_result(const workbench& bench, const sample& run, std::uint64_t bytes, std::uint64_t calls) {
  row_result out;
  out.seconds = run.seconds;
  out.cpu_seconds = run.cpu_seconds;
  out.bytes = bytes;
  out.calls = calls;
  out.path = run.path;
  out.pinned_bytes = bench.owner.stats().pinned_bytes;
  if (run.call_us.size() > 1) {
    out.p50_us = percentile(run.call_us, 0.50);
    out.p99_us = percentile(run.call_us, 0.99);
  }
  return out;
}

void compare(row_result& out, std::string name, double ceiling_gbs, std::string detail) {
  out.ceiling = {std::move(name), ceiling_gbs, std::move(detail)};
  if (ceiling_gbs > 0) out.fraction = out.gbs() / ceiling_gbs;
}

row_result skip(std::string reason) {
  row_result out;
  out.outcome = row_outcome::skipped;
  out.reason = std::move(reason);
  return out;
}

status warm(workbench& bench, const std::string& path, const std::vector<file_range>& ranges) {
  auto plain = open_file::open(bench.meter.kernel(), path, O_RDONLY);
  if (!plain) return plain.error();
  // Readahead would fetch pages after a range that must stay cold. This is only advice; cached pages are counted afterwards.
  static_cast<void>(::posix_fadvise(plain->fd(), 0, 0, POSIX_FADV_RANDOM));
  std::vector<std::byte> buffer(4 * mib);
  for (const file_range& range : ranges) {
    if (stop_asked(bench)) return stopped();
    for (std::uint64_t done = 0; done < range.length;) {
      const std::uint64_t want = std::min<std::uint64_t>(buffer.size(), range.length - done);
      auto count = bench.meter.kernel().pread(plain->fd(), buffer.data(), want, range.offset + done);
      if (!count) return count.error();
      if (*count == 0) return {errc::io, fmt::format("{} became shorter", path)};
      done += *count;
    }
  }
  return {};
}

status make_hot(workbench& bench, const std::string& path, std::uint64_t size) {
  auto found = cached_bytes(path, 0, size);
  // Under memory pressure, a few pages may be evicted while others are read.
  for (int attempt = 0; attempt < 4 && found && *found < size; ++attempt) {
    if (status error = warm(bench, path, {{0, size}}); !error.ok()) return error;
    found = cached_bytes(path, 0, size);
  }
  if (!found) return found.error();
  if (*found >= size) return {};
  return {errc::out_of_memory, fmt::format("{} does not stay in the page cache: {} of {} MiB do", path, *found / mib, size / mib)};
}

status make_cold(const std::string& path, std::uint64_t size) { return drop_cached(path, 0, size); }

std::optional<row_result> skip_unless_cold(workbench& bench) {
  const status error = make_cold(bench.sample.path(), bench.sample.size());
  if (error.code() == errc::unsupported) return skip(std::string(error.message()));
  return std::nullopt;
}

status flush(workbench& bench, const std::string& path) {
  auto plain = open_file::open(bench.meter.kernel(), path, O_RDONLY);
  if (!plain) return plain.error();
  return bench.meter.kernel().sync_data(plain->fd());
}

std::byte* target_bytes(const workbench& bench) { return static_cast<std::byte*>(bench.target.data()); }

status moved_all(const io_result& done, std::uint64_t length) {
  if (!done.ok()) return done.error;
  if (done.bytes_done == length) return {};
  return {errc::io, fmt::format("{} of {} bytes were moved without an error", done.bytes_done, length)};
}

status read_range(const workbench& bench, file_range range, std::byte* target, const io_options& options) {
  return moved_all(bench.source.read(target, range.length, static_cast<std::int64_t>(range.offset), options), range.length);
}

status differ(std::string_view what) { return {errc::internal, fmt::format("WRONG BYTES: {} differ", what)}; }

status verify_read(workbench& bench, file_range range, const std::byte* target) {
  auto expected = sample_hash(bench, range);
  if (!expected) return expected.error();
  auto found = hash_of_memory(bench.owner, target, range.length, bench.settings.stop);
  if (!found) return found.error();
  return *expected == *found ? status() : differ("the bytes in device memory and the bytes of the file");
}

status wipe_if(bool last, const workbench& bench, std::byte* target, std::uint64_t length) {
  return last ? clear_memory(bench.owner, target, length) : status();
}

void drifting::add(const result<ceiling>& measured) {
  if (!measured) {
    problem = std::string(measured.error().message());
  } else if (!before) {
    before = *measured;
  } else {
    after = *measured;
  }
}

double drifting::mean() const { return before && after ? (before->value + after->value) / 2 : 0; }

std::uint64_t probe_bytes(const workbench& bench) { return std::min(bench.sample.size(), gib); }

void compare_drifting(row_result& out, std::string name, const drifting& raw) {
  if (raw.mean() == 0) {
    out.notes.push_back(fmt::format("ceiling not measured: {}", raw.problem));
    return;
  }
  compare(out, std::move(name), raw.mean(),
          fmt::format("{:.2f} before ({}), {:.2f} after ({})", raw.before->value, raw.before->how, raw.after->value, raw.after->how));
}

}  // namespace penstock::bench
