#include "core/stats.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// The class of value in a histogram of powers of two that starts at unit.
std::size_t bucket(std::uint64_t value, std::uint64_t unit) {
  const std::uint64_t units = value / unit;
  return units == 0 ? 0 : std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(units)) - 1, 23);
}

}  // namespace

void stats_book::count_piece(path_kind path, std::uint64_t bytes, span when, bool failed) {
  auto& counters = paths_[static_cast<std::size_t>(path)];
  const auto nanoseconds = static_cast<std::uint64_t>(std::max<std::int64_t>(when.ended_ns - when.began_ns, 0));
  // Pieces end in about the order of their ends: each adds what it reaches past the latest end so far.
  auto last_end = counters.last_end_ns.load(relaxed);
  while (when.ended_ns > last_end && !counters.last_end_ns.compare_exchange_weak(last_end, when.ended_ns, relaxed)) {
  }
  if (when.ended_ns > last_end) {
    counters.active_ns.fetch_add(static_cast<std::uint64_t>(when.ended_ns - std::max(when.began_ns, last_end)), relaxed);
  }
  counters.operations.fetch_add(1, relaxed);
  counters.bytes.fetch_add(bytes, relaxed);
  if (failed) counters.errors.fetch_add(1, relaxed);
  counters.busy_ns.fetch_add(nanoseconds, relaxed);
  counters.sizes[bucket(bytes, 1024)].fetch_add(1, relaxed);
  counters.latencies[bucket(nanoseconds, 1000)].fetch_add(1, relaxed);
}

void stats_book::count_fallback(path_kind path, std::string_view why) {
  const auto index = static_cast<std::size_t>(path);
  paths_[index].fallbacks.fetch_add(1, relaxed);
  (void)or_no_memory([&]() -> status {
    std::string told(why);  // before the lock is taken: it may take a while
    const std::lock_guard guard(lock_);
    last_fallback_[index].swap(told);
    return {};
  });
}

void stats_book::count_requests(bool is_write, std::uint64_t requests, std::uint64_t bytes) {
  (is_write ? writes_ : reads_).fetch_add(requests, relaxed);
  (is_write ? written_bytes_ : read_bytes_).fetch_add(bytes, relaxed);
}

void stats_book::count_request(bool is_write, const io_result& outcome) {
  count_requests(is_write, 1, outcome.bytes_done);
  if (outcome.ok()) return;
  const errc code = outcome.error.code();
  (code == errc::cancelled ? cancelled_ : code == errc::timed_out ? timed_out_ : failed_).fetch_add(1, relaxed);
}

engine_stats stats_book::snapshot() const {
  engine_stats seen;
  seen.by_path.resize(paths_.size());
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const auto& from = paths_[i];
    auto& to = seen.by_path[i];
    to.name = table_.name(static_cast<path_kind>(i));
    to.operations = from.operations.load(relaxed);
    to.bytes = from.bytes.load(relaxed);
    to.errors = from.errors.load(relaxed);
    to.fallbacks = from.fallbacks.load(relaxed);
    to.busy_ns = from.busy_ns.load(relaxed);
    to.active_ns = from.active_ns.load(relaxed);
    for (std::size_t j = 0; j < from.sizes.size(); ++j) {
      to.size_histogram[j] = from.sizes[j].load(relaxed);
      to.latency_histogram[j] = from.latencies[j].load(relaxed);
    }
    const std::lock_guard guard(lock_);
    to.last_fallback = last_fallback_[i];
  }
  seen.reads = reads_.load(relaxed);
  seen.writes = writes_.load(relaxed);
  seen.read_bytes = read_bytes_.load(relaxed);
  seen.written_bytes = written_bytes_.load(relaxed);
  seen.failed = failed_.load(relaxed);
  seen.cancelled = cancelled_.load(relaxed);
  seen.timed_out = timed_out_.load(relaxed);
  return seen;
}

}  // namespace penstock::core
