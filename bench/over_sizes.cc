#include "bench/over_sizes.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "bench/meter.hpp"
#include "bench/row_tools.hpp"
#include "sys/kernel.hpp"

namespace penstock::bench {
namespace {

constexpr std::uint64_t batch_ranges = 128;
constexpr std::uint64_t largest_of_batch = mib;
constexpr std::uint64_t page = 4 * kib;

// Properties shared by the calls of a series.
struct pattern {
  std::string_view series;
  std::string_view summary;
  bool cold = false;
  bool raw = false;              // pread(2) into ordinary memory instead of the library; with O_DIRECT for a cold file
  std::uint64_t file_shift = 0;  // added to each call's offset
  std::uint64_t memory_shift = 0;
};

constexpr std::array<pattern, 5> patterns{{
    {"hot", "file in the page cache, calls in the order of the file", false, false, 0, 0},
    {"unaligned", "file in the page cache, offsets +1, memory +3", false, false, 1, 3},
    {"cold", "file not in the page cache, calls in the order of the file", true, false, 0, 0},
    {"pread", "plain pread(2) of the page cache into ordinary memory", false, true, 0, 0},
    {"O_DIRECT", "plain pread(2) past the page cache into ordinary memory", true, true, 0, 0},
}};
constexpr size_series batches{"batch", "batches of 128 random ranges, file in the page cache"};

std::uint64_t places_of(const workbench& bench, const pattern& of, std::uint64_t call_bytes) {
  return (bench.sample.size() - of.file_shift) / call_bytes;
}

std::uint64_t count_of(const workbench& bench, const pattern& of, std::uint64_t call_bytes) {
  const bool quick = bench.settings.quick;
  const std::uint64_t bytes = quick ? 32 * mib : 512 * mib;
  const std::uint64_t most = (of.cold ? 1'000U : 10'000U) / (quick ? 5 : 1);
  const std::uint64_t wanted = std::clamp<std::uint64_t>(bytes / call_bytes, 4, most);
  return of.cold ? std::min(wanted, places_of(bench, of, call_bytes)) : wanted;  // data that has been read is no longer cold
}

unsigned repeats_of(const workbench& bench) {
  if (bench.settings.repeats > 0) return bench.settings.repeats;
  return bench.settings.quick ? 1 : 3;
}

// Makes one call after the other and records the time of each. call(place) reads the place.
template <class Call>
status take_calls(const workbench& bench, std::uint64_t calls, sample& run, const Call& call) {
  run.call_us.reserve(calls);
  for (std::uint64_t i = 0; i < calls; ++i) {
    if (i % 64 == 0 && stop_asked(bench)) return stopped();
    const auto start = std::chrono::steady_clock::now();
    if (status error = call(i); !error.ok()) return error;
    run.call_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return {};
}

status set_cache(workbench& bench, bool cold) {
  return cold ? make_cold(bench.sample.path(), bench.sample.size()) : make_hot(bench, bench.sample.path(), bench.sample.size());
}

std::vector<std::pair<double, double>> distribution(std::vector<double> call_us) {
  std::vector<std::pair<double, double>> out;
  if (call_us.size() < 2) return out;
  std::sort(call_us.begin(), call_us.end());
  for (const double percent : {0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0}) {
    // With too few calls, a high percentile would just be the maximum.
    if (percent < 100 && static_cast<double>(call_us.size()) * (100 - percent) < 100) continue;
    out.emplace_back(percent, call_us[static_cast<std::size_t>(percent / 100 * static_cast<double>(call_us.size() - 1))]);
  }
  return out;
}

struct measured {
  row_result figures;
  sample run;
};

result<measured> by_library(workbench& bench, const pattern& of, std::uint64_t call_bytes) {
  const std::uint64_t places = places_of(bench, of, call_bytes);
  const std::uint64_t calls = count_of(bench, of, call_bytes);
  const file_range touched{of.file_shift, std::min(places, calls) * call_bytes};
  std::byte* target = target_bytes(bench) + of.memory_shift;
  const source_scope scope(bench, of.cold);
  measurement plan{repeats_of(bench), !of.cold, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = wipe_if(last, bench, target, touched.length); !error.ok()) return error;
    return set_cache(bench, of.cold);
  };
  plan.body = [&](sample& run) {
    return take_calls(bench, calls, run, [&](std::uint64_t call) {
      const std::uint64_t at = call % places * call_bytes;
      return read_range(bench, {of.file_shift + at, call_bytes}, target + at);
    });
  };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  measured out{to_result(bench, *run, calls * call_bytes, calls), std::move(*run)};
  if (status error = verify_read(bench, touched, target); !error.ok()) return error;
  out.figures.verified = true;
  return out;
}

result<measured> by_pread(workbench& bench, const pattern& of, std::uint64_t call_bytes) {
  sys::kernel& kernel = bench.meter.kernel();
  auto fd = kernel.open(bench.sample.path(), of.cold ? O_RDONLY | O_DIRECT : O_RDONLY, 0);
  if (!fd) return fd.error();
  const auto close = [&kernel](const int* open) { static_cast<void>(kernel.close(*open).ok()); };  // nothing was written through it
  const std::unique_ptr<int, decltype(close)> closed(&*fd, close);
  const std::uint64_t room = (call_bytes + page - 1) / page * page;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(page, room), &std::free);
  if (!memory) return status(errc::out_of_memory, fmt::format("{} bytes for plain reads", room));
  const std::uint64_t places = places_of(bench, of, call_bytes);
  const std::uint64_t calls = count_of(bench, of, call_bytes);
  measurement plan{repeats_of(bench), !of.cold, {}, {}};
  plan.prepare = [&](bool) { return set_cache(bench, of.cold); };
  plan.body = [&](sample& run) {
    return take_calls(bench, calls, run, [&](std::uint64_t call) -> status {
      auto count = kernel.pread(*fd, memory.get(), call_bytes, call % places * call_bytes);
      if (!count) return count.error();
      return *count == call_bytes ? status() : status(errc::io, fmt::format("{} of {} bytes came", *count, call_bytes));
    });
  };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  measured out{to_result(bench, *run, calls * call_bytes, calls), std::move(*run)};
  out.figures.path = "pread(2)";
  hasher last;
  last.update(memory.get(), call_bytes);
  auto expected = hash_of_file(bench.sample.path(), (calls - 1) % places * call_bytes, call_bytes, bench.settings.stop);
  if (!expected) return expected.error();
  if (last.value() != *expected) return differ("the bytes of the last plain read and the bytes of the file");
  out.figures.verified = true;
  return out;
}

// Returns random ranges of the file; their order in memory is another random one.
std::vector<io_request> random_ranges(const workbench& bench, std::uint64_t call_bytes) {
  std::vector<std::uint64_t> places(bench.sample.size() / call_bytes);
  std::iota(places.begin(), places.end(), 0);
  random_bytes random(11);
  std::vector<io_request> out;
  for (std::uint64_t i = 0; i < batch_ranges; ++i) {
    std::swap(places[i], places[i + random.next() % (places.size() - i)]);
    out.push_back(
        {&bench.source, target_bytes(bench) + i * call_bytes, call_bytes, static_cast<std::int64_t>(places[i] * call_bytes), false});
  }
  return out;
}

result<measured> by_batches(workbench& bench, std::uint64_t call_bytes) {
  const auto requests = random_ranges(bench, call_bytes);
  const std::uint64_t bytes = batch_ranges * call_bytes;
  const std::uint64_t count =
      std::clamp<std::uint64_t>((bench.settings.quick ? 32 : 512) * mib / bytes, 4, bench.settings.quick ? 50 : 500);
  measurement plan{repeats_of(bench), true, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = wipe_if(last, bench, target_bytes(bench), bytes); !error.ok()) return error;
    return set_cache(bench, false);
  };
  plan.body = [&](sample& run) {
    return take_calls(bench, count, run, [&](std::uint64_t) -> status {
      batch work = bench.owner.submit(requests);
      for (const io_result& each : work.wait()) {
        if (status error = moved_all(each, call_bytes); !error.ok()) return error;
      }
      return {};
    });
  };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  measured out{to_result(bench, *run, count * bytes, count * batch_ranges), std::move(*run)};
  hasher expected;
  for (const io_request& each : requests) {
    if (status error = hash_file(expected, bench.sample.path(), static_cast<std::uint64_t>(each.offset), call_bytes); !error.ok())
      return error;
  }
  auto found = hash_of_memory(bench.owner, bench.target.data(), bytes);
  if (!found) return found.error();
  if (expected.value() != *found) return differ("the ranges of a batch in device memory and in the file");
  out.figures.verified = true;
  return out;
}

status add_point(size_sweep& into, std::string_view series, std::uint64_t call_bytes, result<measured> found) {
  size_point point{std::string(series), call_bytes, {}, {}};
  if (found) {
    point.figures = std::move(found->figures);
    point.latency_us = distribution(std::move(found->run.call_us));
  } else if (found.error().code() == errc::cancelled) {
    return found.error();
  } else {
    // If the file system keeps its pages or does not support O_DIRECT, cold reads are impossible, which is not a failure.
    const bool refused = found.error().domain() == error_domain::os && found.error().native() == EINVAL;
    const bool no_such_thing = found.error().code() == errc::unsupported || (refused && series == "O_DIRECT");
    point.figures.outcome = no_such_thing ? row_outcome::skipped : row_outcome::failed;
    point.figures.reason = std::string(found.error().message());
  }
  into.points.push_back(std::move(point));
  return {};
}

}  // namespace

std::vector<size_series> all_series() {
  std::vector<size_series> out;
  for (const pattern& each : patterns) out.push_back({each.series, each.summary});
  out.push_back(batches);
  return out;
}

std::vector<std::uint64_t> usual_sizes(bool quick) {
  if (quick) return {4 * kib, 64 * kib, mib, 16 * mib};
  return {4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib, 16 * mib, 64 * mib};
}

status measure_size(workbench& bench, std::uint64_t call_bytes, size_sweep& into) {
  for (const pattern& each : patterns) {
    if (places_of(bench, each, call_bytes) == 0) continue;
    auto found = each.raw ? by_pread(bench, each, call_bytes) : by_library(bench, each, call_bytes);
    if (status error = add_point(into, each.series, call_bytes, std::move(found)); !error.ok()) return error;
  }
  if (call_bytes > largest_of_batch || batch_ranges * call_bytes > bench.sample.size()) return {};
  return add_point(into, batches.name, call_bytes, by_batches(bench, call_bytes));
}

status measure_disk(workbench& bench, size_sweep& into) {
  if (stop_asked(bench)) return stopped();
  auto found = bench.meter.direct_read(bench.sample.path(), probe_bytes(bench));
  if (found) into.direct_read = *found;
  return {};
}

}  // namespace penstock::bench
