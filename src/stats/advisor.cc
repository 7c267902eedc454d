#include "stats/advisor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::stats {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t least_times = 16;           // for events that matter only if they are repeated
constexpr std::uint64_t least_compared = 16 * mib;  // bytes needed for a speed to compare with
constexpr unsigned least_lanes = 4;

double seconds(double nanoseconds) { return nanoseconds / 1e9; }

// Formats 12480 as "12,480".
std::string number(std::uint64_t value) {
  return value < 1000 ? fmt::format("{}", value) : fmt::format("{},{:03}", number(value / 1000), value % 1000);
}

std::string size(double bytes) {
  constexpr double kib = 1024;
  if (bytes < kib) return fmt::format("{:.0f} bytes", bytes);
  const double units = bytes < kib * kib ? bytes / kib : bytes < kib * kib * kib ? bytes / kib / kib : bytes / kib / kib / kib;
  const char* unit = bytes < kib * kib ? "KiB" : bytes < kib * kib * kib ? "MiB" : "GiB";
  return units == std::floor(units) ? fmt::format("{:.0f} {}", units, unit) : fmt::format("{:.1f} {}", units, unit);
}

std::string size(std::uint64_t bytes) { return size(static_cast<double>(bytes)); }
std::string mean_size(std::uint64_t bytes, std::uint64_t count) {
  return size(std::round(static_cast<double>(bytes) / static_cast<double>(count)));
}

// Two digits, because it is an estimate.
std::string time(double of_seconds) {
  if (of_seconds < 1e-6) return "less than 1 us";
  if (of_seconds < 1e-3) return fmt::format("{:.2g} us", of_seconds * 1e6);
  if (of_seconds < 0.95) return of_seconds < 0.0995 ? fmt::format("{:.2g} ms", of_seconds * 1e3) : fmt::format("{:.2f} s", of_seconds);
  return of_seconds < 99.5 ? fmt::format("{:.1f} s", of_seconds) : fmt::format("{:.0f} s", of_seconds);
}

class adviser {
 public:
  explicit adviser(const engine_stats& stats) : use_(stats.usage) {
    for (const auto& path : stats.by_path) {
      busy_ns_ += static_cast<double>(path.busy_ns);
      active_ns_ += static_cast<double>(path.active_ns);
      bytes_ += static_cast<double>(path.bytes);
    }
  }

  std::vector<advice> all(const advice_limits& limits) {
    tiny_calls();
    lone_calls();
    registrations();
    unaligned();
    read_again();
    nodes();
    slab_waits();
    put_off_by_servers();
    bound_by_tls();
    waits_of_far_reads();
    const double least =
        std::max(limits.least_seconds, limits.least_part * seconds(active_ns_ + static_cast<double>(use_.registration_ns)));
    std::erase_if(found_, [&](const candidate& each) { return each.cost <= 0 || each.cost < least; });
    std::stable_sort(found_.begin(), found_.end(), [](const candidate& one, const candidate& other) { return one.cost > other.cost; });
    std::vector<advice> told;
    told.reserve(found_.size());
    for (auto& each : found_) told.push_back(std::move(each.told));
    return told;
  }

 private:
  struct candidate {
    advice told;
    double cost;  // in seconds: the loss or, if unknown, the time that contains it
  };

  void add(std::string code, std::string text, std::string remedy, double loss) {
    found_.push_back({{std::move(code), std::move(text), std::move(remedy), loss}, loss});
  }
  // The average number of pieces in flight, at least one.
  [[nodiscard]] double beside_each_other() const { return active_ns_ > 0 ? std::max(1.0, busy_ns_ / active_ns_) : 1.0; }
  [[nodiscard]] double copying(double bytes) const { return bytes / static_cast<double>(mib) * static_cast<double>(use_.copy_ns_per_mib); }

  // Returns what 1 MiB calls would save, in nanoseconds of the caller's time.
  [[nodiscard]] double saved_by_long_calls(std::uint64_t count, std::uint64_t bytes, std::uint64_t nanoseconds) const {
    const auto all = static_cast<double>(nanoseconds);
    const double long_calls = static_cast<double>(bytes) / static_cast<double>(mib);
    return all - long_calls * all / static_cast<double>(count) - copying(static_cast<double>(bytes));
  }

  void tiny_calls() {
    if (use_.copy_ns_per_mib == 0) return;
    const auto of = [&](std::string_view what, std::uint64_t count, std::uint64_t bytes, std::uint64_t ns) {
      if (count < least_times) return;
      const double loss = seconds(saved_by_long_calls(count, bytes, ns) / beside_each_other());
      const double spent = seconds(static_cast<double>(ns) / beside_each_other());
      add("tiny-sequential-calls",
          fmt::format("{} sequential {}s of {} on average came from one thread ({}): 1 MiB {}s would save about {} of {}.", number(count),
                      what, mean_size(bytes, count), size(bytes), what, time(loss), time(spent)),
          what == "read" ? "Read larger pieces, or use a batch." : "Write larger pieces, or use a batch.", loss);
    };
    of("read", use_.sequential_reads, use_.sequential_read_bytes, use_.sequential_read_ns);
    of("write", use_.sequential_writes, use_.sequential_write_bytes, use_.sequential_write_ns);
  }

  void lone_calls() {
    constexpr double alone = 1.5;
    if (use_.lone_reads < least_times || use_.lanes < least_lanes || beside_each_other() >= alone) return;
    const double spent = seconds(static_cast<double>(use_.lone_read_ns) / beside_each_other());
    const double loss = spent * (1 - 1.0 / least_lanes);
    add("one-thread-on-a-hot-file",
        fmt::format("One thread made {} separate reads of {} on average from the page cache while {} lanes were idle "
                    "({}): a batch would save about {} of {}.",
                    number(use_.lone_reads), mean_size(use_.lone_read_bytes, use_.lone_reads), use_.lanes, size(use_.lone_read_bytes),
                    time(loss), time(spent)),
        "Submit them as a batch, or start several with read_async before waiting.", loss);
  }

  void registrations() {
    const auto count = use_.short_registrations;
    if (count < least_times) return;
    const double spent = seconds(static_cast<double>(use_.short_registration_ns));
    const double loss = spent * static_cast<double>(count - 1) / static_cast<double>(count);
    add("register-in-a-loop",
        fmt::format("{} buffers were registered and deregistered for {:.1f} requests each on average: that took {}, and keeping one "
                    "registered would save about {}.",
                    number(count), static_cast<double>(use_.short_registration_requests) / static_cast<double>(count), time(spent),
                    time(loss)),
        "Register a buffer once and keep it for all requests, or do not register it: registration is optional.", loss);
  }

  void unaligned() {
    const auto ns = static_cast<double>(use_.unaligned_ns);
    const auto bytes = static_cast<double>(use_.unaligned_bytes);
    const double other_bytes = bytes_ - bytes;
    const double per_byte = other_bytes >= static_cast<double>(least_compared)
                                ? std::max(busy_ns_ - ns, 0.0) / other_bytes
                                : static_cast<double>(use_.copy_ns_per_mib) / static_cast<double>(mib);
    const double detour = std::max(ns - bytes * per_byte, 0.0);
    const auto extra = static_cast<double>(use_.block_extra_bytes);
    const auto asked = static_cast<double>(use_.block_read_bytes);
    const double unasked = extra > 0 ? static_cast<double>(use_.block_read_ns) * extra / (asked + extra) : 0;
    const double loss = seconds((detour + unasked) / beside_each_other());
    std::string text;
    if (use_.unaligned_pieces > 0) {
      text = fmt::format("{} pieces ({}) were not aligned and took a different path from the rest, through the page cache",
                         number(use_.unaligned_pieces), size(use_.unaligned_bytes));
    }
    if (extra > 0) {
      text += fmt::format("{}to read {} past the page cache, {} more than requested were read, because only whole blocks can be read",
                          text.empty() ? "" : "; ", size(use_.block_read_bytes), size(use_.block_extra_bytes));
    }
    if (text.empty()) return;
    text.front() = text.front() == 't' ? 'T' : text.front();
    add("unaligned", fmt::format("{}: about {} lost.", text, time(loss)),
        "Align offset, length and address to 4 KiB, or make requests larger.", loss);
  }

  void read_again() {
    if (use_.reread_bytes == 0 || use_.cold_read_bytes == 0) return;
    const auto again = static_cast<double>(use_.reread_bytes);
    const auto spent = static_cast<double>(use_.cold_read_ns);
    const double loss = seconds(spent * again / static_cast<double>(use_.cold_read_bytes) - copying(again));
    add("cold-file-read-twice",
        fmt::format("Of {} read from disk past the page cache, {} had been read that way before: caching them would save about {} of {}.",
                    size(use_.cold_read_bytes), size(use_.reread_bytes), time(loss), time(seconds(spent))),
        "Keep the file in the page cache (cache=fill, or PENSTOCK_CACHE=fill) if memory has room for it, or keep the data in the program.",
        loss);
  }

  void nodes() {
    if (use_.far_pieces < least_times) return;
    const double far = seconds(static_cast<double>(use_.far_ns) / beside_each_other());
    const std::string what = fmt::format("{} pieces ({}) were transferred by threads on a different NUMA node than the GPU or buffer",
                                         number(use_.far_pieces), size(use_.far_bytes));
    const std::string remedy =
        "Run the program on that node (numactl --cpunodebind=N --membind=N; `penstock check` shows each GPU's node).";
    if (use_.near_bytes < least_compared) {
      found_.push_back(
          {{"wrong-numa-node",
            fmt::format("{}, which took {}; the possible saving is not known, because almost nothing was transferred on the right node.",
                        what, time(far)),
            remedy, std::nullopt},
           far});
      return;
    }
    const double per_byte = static_cast<double>(use_.near_ns) / static_cast<double>(use_.near_bytes);
    const double loss = seconds((static_cast<double>(use_.far_ns) - static_cast<double>(use_.far_bytes) * per_byte) / beside_each_other());
    add("wrong-numa-node", fmt::format("{}: threads on the right node would save about {} of {}.", what, time(loss), time(far)), remedy,
        loss);
  }

  void slab_waits() {
    if (use_.slab_waits < least_times) return;
    const double loss = seconds(static_cast<double>(use_.slab_wait_ns));
    add("pinned-budget-exhausted",
        fmt::format("{} times a transfer waited for pinned memory because the budget was exhausted, {} in total.", number(use_.slab_waits),
                    time(loss)),
        "Raise the budget: PENSTOCK_PINNED_MIB, or engine_options::pinned_budget_bytes.", loss);
  }

  void put_off_by_servers() {
    if (use_.remote_put_offs < least_times) return;
    const double loss = seconds(static_cast<double>(use_.remote_put_off_ns));
    add("server-throttles",
        fmt::format("Servers delayed {} of {} requests because they received too many: for {}, at least one was waiting.",
                    number(use_.remote_put_offs), number(use_.remote_requests), time(loss)),
        "Spread the objects over several prefixes or servers, let fewer programs read concurrently, or cache repeated reads nearby.", loss);
  }

  void bound_by_tls() {
    const double bound = seconds(static_cast<double>(use_.remote_tls_bound_ns));
    found_.push_back({{"tls-binds",
                       fmt::format("For {}, receiving over TLS ({} in total) kept the core of at least one thread fully busy; the possible "
                                   "saving is not known.",
                                   time(bound), size(use_.remote_tls_bytes)),
                       "Give the program more cores, or read over plain HTTP if the network is trusted.", std::nullopt},
                      bound});
  }

  void waits_of_far_reads() {
    if (use_.remote_memory_waits < least_times) return;
    const double loss = seconds(static_cast<double>(use_.remote_memory_wait_ns));
    add("remote-reads-lack-memory",
        fmt::format("{} times reads from a server waited because their share of the pinned memory was exhausted, {} in total.",
                    number(use_.remote_memory_waits), time(loss)),
        "Raise the budget (such reads may use a quarter of it): PENSTOCK_PINNED_MIB, or engine_options::pinned_budget_bytes.", loss);
  }

  const usage_stats& use_;
  double busy_ns_ = 0;
  double active_ns_ = 0;
  double bytes_ = 0;
  std::vector<candidate> found_;
};

std::uint64_t measure_copy() {
  using clock = std::chrono::steady_clock;
  constexpr std::size_t bytes = 4 * mib;  // more than a core's own caches can hold
  const auto source = std::make_unique<char[]>(bytes);
  const auto target = std::make_unique<char[]>(bytes);
  auto best = clock::duration::max();
  for (int i = 0; i < 4; ++i) {  // the first round only maps the pages
    std::memset(source.get(), i, bytes);
    const auto began = clock::now();
    std::memcpy(target.get(), source.get(), bytes);
    if (target[bytes - 1] != i) return 0;  // forces the copy to complete before the clock is read
    best = std::min(best, clock::now() - began);
  }
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(best).count()) / (bytes / mib);
}

}  // namespace

std::vector<advice> advise(const engine_stats& stats, const advice_limits& limits) { return adviser(stats).all(limits); }

std::string advice_lines(const std::vector<advice>& found) {
  std::string told;
  for (const auto& each : found) told += fmt::format("advice: {} {} [{}]\n", each.text, each.remedy, each.code);
  return told;
}

std::uint64_t measured_copy_ns_per_mib() noexcept {
  // Not a static local: if another thread were initializing one during a fork, the child would wait for that thread forever.
  static std::atomic<std::uint64_t> measured{0};
  if (measured.load() == 0) measured.store(or_without_memory([] { return measure_copy(); }, [] { return std::uint64_t{0}; }));
  return measured.load();
}

}  // namespace penstock::stats

namespace penstock {

std::vector<advice> advise(const engine_stats& stats) { return stats::advise(stats, {}); }

}  // namespace penstock
