#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>

#include "bench/meter.hpp"
#include "bench/page_cache.hpp"
#include "bench/row_functions.hpp"
#include "bench/row_tools.hpp"

namespace penstock::bench {
namespace {

// --- whole hot file

result<row_result> hot_whole(workbench& bench, const io_options& options) {
  const file_range all{0, bench.sample.size()};
  measurement plan{hot_repeats(bench), true, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = make_hot(bench, bench.sample.path(), all.length); !error.ok()) return error;
    return wipe_if(last, bench, target_bytes(bench), all.length);
  };
  plan.body = [&](sample&) { return read_range(bench, all, target_bytes(bench), options); };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  row_result out = to_result(bench, *run, all.length);
  if (status error = verify_read(bench, all, target_bytes(bench)); !error.ok()) return error;
  out.verified = true;
  compare(out, "link to device", bench.link.to_device_gbs);
  return out;
}

// --- a hot file in parts

struct part_of_gpu {
  file_range range;
  device_buffer memory;
};

result<std::vector<part_of_gpu>> cut_for_gpus(const workbench& bench) {
  std::vector<std::string> gpus;
  for (const auto& each : bench.owner.devices()) {
    if (each.name.starts_with("cuda:")) gpus.push_back(each.name);
  }
  std::vector<part_of_gpu> parts;
  const std::uint64_t share = bench.sample.size() / std::max<std::size_t>(gpus.size(), 1) / mib * mib;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const std::uint64_t from = i * share;
    const std::uint64_t length = i + 1 == gpus.size() ? bench.sample.size() - from : share;
    auto memory = bench.owner.allocate(gpus[i], length);
    if (!memory) return memory.error();
    parts.push_back({{from, length}, *std::move(memory)});
  }
  return parts;
}

status read_parts(const workbench& bench, const std::vector<part_of_gpu>& parts) {
  std::vector<std::thread> crew;
  std::vector<status> outcomes(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    crew.emplace_back([&, i] { outcomes[i] = read_range(bench, parts[i].range, static_cast<std::byte*>(parts[i].memory.data())); });
  }
  for (std::thread& thread : crew) thread.join();
  for (status& each : outcomes) {
    if (!each.ok()) return std::move(each);
  }
  return {};
}

// --- many hot calls

struct call_pattern {
  std::uint64_t call_bytes = 0;
  std::uint64_t calls = 0;
  unsigned threads = 1;
  bool immutable = false;  // the file is declared immutable
};

// One thread of a pattern: takes the next call until none are left, and records the time of each.
status take_calls(const workbench& bench, const file& from, const call_pattern& pattern, std::atomic<std::uint64_t>& next,
                  std::vector<double>& call_us) {
  const std::uint64_t places = bench.sample.size() / pattern.call_bytes;
  for (std::uint64_t call = next.fetch_add(1); call < pattern.calls; call = next.fetch_add(1)) {
    if (call % 64 == 0 && stop_asked(bench)) return stopped();
    const file_range range{call % places * pattern.call_bytes, pattern.call_bytes};
    const auto start = std::chrono::steady_clock::now();
    const auto done = from.read(target_bytes(bench) + range.offset, range.length, static_cast<std::int64_t>(range.offset));
    if (status error = moved_all(done, range.length); !error.ok()) return error;
    call_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return {};
}

status run_calls(const workbench& bench, const file& from, const call_pattern& pattern, sample& run) {
  std::atomic<std::uint64_t> next{0};
  run.call_us.reserve(pattern.calls);
  if (pattern.threads == 1) return take_calls(bench, from, pattern, next, run.call_us);
  std::vector<std::thread> crew;
  std::mutex mutex;  // guards run and error
  status error;
  for (unsigned i = 0; i < pattern.threads; ++i) {
    crew.emplace_back([&] {
      std::vector<double> call_us;
      call_us.reserve(pattern.calls);
      status outcome = take_calls(bench, from, pattern, next, call_us);
      const std::lock_guard lock(mutex);
      run.call_us.insert(run.call_us.end(), call_us.begin(), call_us.end());
      if (error.ok()) error = std::move(outcome);
    });
  }
  for (std::thread& thread : crew) thread.join();
  return error;
}

result<row_result> hot_calls(workbench& bench, const call_pattern& pattern) {
  const std::uint64_t places = bench.sample.size() / pattern.call_bytes;
  const file_range touched{0, std::min(places, pattern.calls) * pattern.call_bytes};
  open_options how;
  how.immutable = true;
  auto opened = pattern.immutable ? bench.owner.open(bench.sample.path(), how) : result<file>(file());
  if (!opened) return opened.error();
  const file& from = pattern.immutable ? *opened : bench.source;
  measurement plan{hot_repeats(bench), true, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = make_hot(bench, bench.sample.path(), bench.sample.size()); !error.ok()) return error;
    return wipe_if(last, bench, target_bytes(bench), touched.length);
  };
  plan.body = [&](sample& run) { return run_calls(bench, from, pattern, run); };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  row_result out = to_result(bench, *run, pattern.calls * pattern.call_bytes, pattern.calls);
  if (status error = verify_read(bench, touched, target_bytes(bench)); !error.ok()) return error;
  out.verified = true;
  compare(out, "link to device", bench.link.to_device_gbs);
  return out;
}

result<row_result> hot_stream_of_calls(workbench& bench, std::uint64_t call_bytes, unsigned threads, bool immutable = false) {
  return hot_calls(bench, {call_bytes, bench.sample.size() / call_bytes, threads, immutable});
}

result<row_result> small_calls(workbench& bench, std::uint64_t call_bytes) {
  auto out = hot_calls(bench, {call_bytes, bench.settings.quick ? 4'000U : 20'000U, 1});
  if (out) out->notes.push_back(fmt::format("raw 4 KiB copy and wait: {:.1f} us", bench.link.copy_4k_us));
  return out;
}

// --- cold

// Returns every second piece of 16 MiB, starting with the first or the second.
std::vector<file_range> alternate_pieces(std::uint64_t size, bool odd) {
  constexpr std::uint64_t piece = 16 * mib;
  std::vector<file_range> pieces;
  for (std::uint64_t offset = odd ? piece : 0; offset < size; offset += 2 * piece)
    pieces.push_back({offset, std::min(piece, size - offset)});
  return pieces;
}

std::uint64_t total_length(const std::vector<file_range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const file_range& r) { return sum + r.length; });
}

status read_batch(const workbench& bench, const std::vector<io_request>& requests) {
  batch work = bench.owner.submit(requests);
  const std::vector<io_result> ended = work.wait();
  if (ended.size() != requests.size()) return {errc::internal, fmt::format("{} results of {} requests", ended.size(), requests.size())};
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (status error = moved_all(ended[i], requests[i].length); !error.ok()) return error;
  }
  return {};
}

status make_half_hot(workbench& bench, const std::vector<file_range>& hot) {
  const std::string& path = bench.sample.path();
  const std::uint64_t wanted = total_length(hot);
  const std::uint64_t edges = wanted / 100;  // allowance for pages that the kernel adds at the edges of large folios
  if (status error = make_cold(path, bench.sample.size()); !error.ok()) return error;
  std::uint64_t found = 0;
  // Under memory pressure, a few pages may be evicted while others are read.
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (status error = warm(bench, path, hot); !error.ok()) return error;
    const auto cached = cached_bytes(path, 0, bench.sample.size());
    if (!cached) return cached.error();
    found = *cached;
    if (found + edges >= wanted) break;
  }
  if (found + edges < wanted)
    return {errc::out_of_memory, fmt::format("{} does not stay in the page cache: {} of {} MiB do", path, found / mib, wanted / mib)};
  if (found > wanted + edges)
    return {errc::internal, fmt::format("{} MiB are in the page cache instead of {} MiB", found / mib, wanted / mib)};
  return {};
}

// --- batches

constexpr std::uint64_t small_piece = 4 * kib;

// Distinct random offsets of the file, each for a slot of memory in another random order.
struct scattered {
  std::vector<io_request> requests;
  std::vector<std::uint64_t> file_offset_of_slot;  // slot i of memory receives 4 KiB from here
};

scattered random_pieces(const workbench& bench, std::uint64_t count) {
  random_bytes random(7);
  std::vector<std::uint64_t> places(bench.sample.size() / small_piece);
  std::iota(places.begin(), places.end(), 0);
  std::vector<std::uint64_t> slots(count);
  std::iota(slots.begin(), slots.end(), 0);
  for (std::uint64_t i = 0; i < count; ++i) std::swap(places[i], places[i + random.next() % (places.size() - i)]);
  for (std::uint64_t i = 0; i < count; ++i) std::swap(slots[i], slots[i + random.next() % (count - i)]);
  scattered out;
  out.file_offset_of_slot.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t offset = places[i] * small_piece;
    out.requests.push_back(
        {&bench.source, target_bytes(bench) + slots[i] * small_piece, small_piece, static_cast<std::int64_t>(offset), false});
    out.file_offset_of_slot[slots[i]] = offset;
  }
  return out;
}

status verify_scattered(const workbench& bench, const scattered& pieces) {
  hasher expected;
  for (const std::uint64_t offset : pieces.file_offset_of_slot) {
    if (status error = hash_file(expected, bench.sample.path(), offset, small_piece); !error.ok()) return error;
  }
  auto found = hash_of_memory(bench.owner, bench.target.data(), pieces.requests.size() * small_piece);
  if (!found) return found.error();
  return expected.value() == *found ? status() : differ("the scattered pieces in device memory and in the file");
}

std::uint64_t batch_count(const workbench& bench) { return bench.settings.quick ? 4'096 : 16'384; }

result<row_result> batch_4k(workbench& bench, const measurement& how, const scattered& pieces) {
  auto run = measure(bench, how);
  if (!run) return run.error();
  row_result out = to_result(bench, *run, pieces.requests.size() * small_piece, pieces.requests.size());
  if (status error = verify_scattered(bench, pieces); !error.ok()) return error;
  out.verified = true;
  return out;
}

// --- alignment

result<row_result> unaligned_rows(workbench& bench, unsigned repeats, bool warm_up, const std::function<status()>& set_cache) {
  const std::uint64_t length = std::min(bench.sample.size(), gib);
  const file_range aligned{0, length};
  const file_range odd{1, length - 3};
  std::byte* odd_target = target_bytes(bench) + 3;
  const auto run_on = [&](file_range range, std::byte* target) -> result<sample> {
    measurement plan{1, false, {}, {}};
    plan.prepare = [&](bool last) {
      if (status error = wipe_if(last, bench, target, range.length); !error.ok()) return error;
      return set_cache();
    };
    plan.body = [&](sample&) { return read_range(bench, range, target); };
    return measure(bench, plan);
  };
  std::vector<sample> aligned_runs;
  std::vector<sample> odd_runs;
  for (unsigned i = 0; i < repeats + (warm_up ? 1 : 0); ++i) {
    auto straight = run_on(aligned, target_bytes(bench));
    if (!straight) return straight.error();
    auto crooked = run_on(odd, odd_target);
    if (!crooked) return crooked.error();
    if (warm_up && i == 0) continue;
    aligned_runs.push_back(std::move(*straight));
    odd_runs.push_back(std::move(*crooked));
  }
  const sample straight = median_run(std::move(aligned_runs));
  row_result out = to_result(bench, median_run(std::move(odd_runs)), odd.length);
  if (status error = verify_read(bench, odd, odd_target); !error.ok()) return error;
  out.verified = true;
  compare(out, "the same range aligned", gigabytes_per_second(aligned.length, straight.seconds), straight.path);
  return out;
}

}  // namespace

result<row_result> hot_4g(workbench& bench) { return hot_whole(bench, {}); }

result<row_result> hot_4g_cpu(workbench& bench) {
  io_options options;
  options.prefer = preference::cpu;
  return hot_whole(bench, options);
}

result<row_result> hot_16m(workbench& bench) { return hot_stream_of_calls(bench, 16 * mib, 1); }

result<row_result> hot_1m(workbench& bench) { return hot_stream_of_calls(bench, mib, 1); }

result<row_result> hot_16m_ahead(workbench& bench) { return hot_stream_of_calls(bench, 16 * mib, 1, true); }

result<row_result> hot_1m_ahead(workbench& bench) { return hot_stream_of_calls(bench, mib, 1, true); }

result<row_result> hot_1m_t8(workbench& bench) { return hot_stream_of_calls(bench, mib, 8); }

result<row_result> hot_gpus(workbench& bench) {
  auto parts = cut_for_gpus(bench);
  if (!parts) return parts.error();
  if (parts->size() < 2) return skip("fewer than two GPUs");
  measurement plan{hot_repeats(bench), true, {}, {}};
  plan.prepare = [&](bool last) {
    status error = make_hot(bench, bench.sample.path(), bench.sample.size());
    for (const auto& each : *parts) {
      if (error.ok()) error = wipe_if(last, bench, static_cast<std::byte*>(each.memory.data()), each.range.length);
    }
    return error;
  };
  plan.body = [&](sample&) { return read_parts(bench, *parts); };
  auto run = measure(bench, plan);
  if (!run) return run.error();
  row_result out = to_result(bench, *run, bench.sample.size(), parts->size());
  for (const auto& each : *parts) {
    if (status error = verify_read(bench, each.range, static_cast<const std::byte*>(each.memory.data())); !error.ok()) return error;
  }
  out.verified = true;
  compare(out, "links to all devices", bench.link.to_device_gbs * static_cast<double>(parts->size()));
  return out;
}

result<row_result> call_4k(workbench& bench) { return small_calls(bench, 4 * kib); }

result<row_result> call_64k(workbench& bench) { return small_calls(bench, 64 * kib); }

result<row_result> batch_4k_hot(workbench& bench) {
  const scattered pieces = random_pieces(bench, batch_count(bench));
  measurement plan{hot_repeats(bench), true, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = make_hot(bench, bench.sample.path(), bench.sample.size()); !error.ok()) return error;
    return wipe_if(last, bench, target_bytes(bench), pieces.requests.size() * small_piece);
  };
  plan.body = [&](sample&) { return read_batch(bench, pieces.requests); };
  return batch_4k(bench, plan, pieces);
}

result<row_result> unaligned(workbench& bench) {
  return unaligned_rows(bench, hot_repeats(bench), true, [&] { return make_hot(bench, bench.sample.path(), bench.sample.size()); });
}

result<row_result> cold_4g(workbench& bench) {
  if (auto skipped = skip_unless_cold(bench)) return *skipped;
  const file_range all{0, bench.sample.size()};
  measurement plan{cold_repeats(bench), false, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = wipe_if(last, bench, target_bytes(bench), all.length); !error.ok()) return error;
    return make_cold(bench.sample.path(), all.length);
  };
  plan.body = [&](sample&) { return read_range(bench, all, target_bytes(bench)); };
  drifting raw;
  raw.add(bench.meter.direct_read(bench.sample.path(), probe_bytes(bench)));
  auto run = measure(bench, plan);
  if (!run) return run.error();
  raw.add(bench.meter.direct_read(bench.sample.path(), probe_bytes(bench)));
  row_result out = to_result(bench, *run, all.length);
  if (status error = verify_read(bench, all, target_bytes(bench)); !error.ok()) return error;
  out.verified = true;
  compare_drifting(out, "raw O_DIRECT read", raw);
  return out;
}

result<row_result> half_hot(workbench& bench) {
  if (auto skipped = skip_unless_cold(bench)) return *skipped;
  const file_range all{0, bench.sample.size()};
  const std::vector<file_range> hot = alternate_pieces(all.length, false);
  const std::vector<file_range> cold = alternate_pieces(all.length, true);
  std::vector<io_request> cold_requests;
  for (const file_range& r : cold)
    cold_requests.push_back({&bench.source, target_bytes(bench) + r.offset, r.length, static_cast<std::int64_t>(r.offset), false});

  measurement both{1, false, {}, {}};
  both.prepare = [&](bool) {
    if (status error = clear_memory(bench.owner, target_bytes(bench), all.length); !error.ok()) return error;
    return make_half_hot(bench, hot);
  };
  both.body = [&](sample&) { return read_range(bench, all, target_bytes(bench)); };
  measurement only_cold{1, false, {}, {}};
  only_cold.prepare = [&](bool) { return make_cold(bench.sample.path(), all.length); };
  only_cold.body = [&](sample&) { return read_batch(bench, cold_requests); };

  // Alternate the runs, so that a drifting disk affects both equally.
  std::vector<sample> both_runs;
  std::vector<sample> cold_runs;
  for (unsigned i = 0; i < cold_repeats(bench); ++i) {
    auto mixed = measure(bench, both);
    if (!mixed) return mixed.error();
    if (status error = verify_read(bench, all, target_bytes(bench)); !error.ok()) return error;
    auto alone = measure(bench, only_cold);
    if (!alone) return alone.error();
    both_runs.push_back(std::move(*mixed));
    cold_runs.push_back(std::move(*alone));
  }
  const sample mixed = median_run(std::move(both_runs));
  const sample alone = median_run(std::move(cold_runs));
  row_result out = to_result(bench, mixed, all.length);
  out.verified = true;  // each mixed run was compared
  out.ratio = mixed.seconds / alone.seconds;
  out.notes.push_back(fmt::format("{:.3f} s with every second 16 MiB hot; the cold pieces alone, as a batch: {:.3f} s, {:.2f} GB/s, {}",
                                  mixed.seconds, alone.seconds, gigabytes_per_second(total_length(cold), alone.seconds), alone.path));
  return out;
}

result<row_result> batch_4k_cold(workbench& bench) {
  if (auto skipped = skip_unless_cold(bench)) return *skipped;
  const scattered pieces = random_pieces(bench, batch_count(bench));
  measurement plan{cold_repeats(bench), false, {}, {}};
  plan.prepare = [&](bool last) {
    if (status error = wipe_if(last, bench, target_bytes(bench), pieces.requests.size() * small_piece); !error.ok()) return error;
    return make_cold(bench.sample.path(), bench.sample.size());
  };
  plan.body = [&](sample&) { return read_batch(bench, pieces.requests); };
  const std::uint64_t probes = 4 * batch_count(bench);
  drifting raw;
  raw.add(bench.meter.random_read(bench.sample.path(), probes));
  auto out = batch_4k(bench, plan, pieces);
  if (!out) return out;
  raw.add(bench.meter.random_read(bench.sample.path(), probes));
  if (raw.mean() == 0) {
    out->notes.push_back(fmt::format("ceiling not measured: {}", raw.problem));
    return out;
  }
  const double reads_per_second = static_cast<double>(out->calls) / out->seconds;
  out->fraction = reads_per_second / raw.mean();
  out->ceiling = {"raw 4 KiB reads, 128 in flight", raw.mean() * small_piece / 1e9,
                  fmt::format("{:.0f} k/s before, {:.0f} k/s after; this row {:.0f} k/s", raw.before->value / 1e3, raw.after->value / 1e3,
                              reads_per_second / 1e3)};
  return out;
}

result<row_result> unaligned_cold(workbench& bench) {
  if (auto skipped = skip_unless_cold(bench)) return *skipped;
  return unaligned_rows(bench, cold_repeats(bench), false, [&] { return make_cold(bench.sample.path(), bench.sample.size()); });
}

}  // namespace penstock::bench
