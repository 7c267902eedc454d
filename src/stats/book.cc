#include "stats/book.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <string>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::stats {

namespace {

constexpr std::array counted_early{place_of(&usage_stats::handle_registers), place_of(&usage_stats::handle_register_errors),
                                   place_of(&usage_stats::buffer_registers), place_of(&usage_stats::buffer_register_errors)};

// Returns the class of a value in a histogram of powers of two that starts at unit.
std::size_t bucket(std::uint64_t value, std::uint64_t unit) {
  const std::uint64_t units = value / unit;
  return units == 0 ? 0 : std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(units)) - 1, 23);
}

// Adds to the time with at least one span in progress. Spans arrive approximately in the order of their ends. Each one adds the part of it
// that is after the latest end so far.
void add_active(counter& active_ns, std::atomic<std::int64_t>& last_end_ns, const book::span& when) noexcept {
  auto last_end = last_end_ns.load(relaxed);
  while (when.ended_ns > last_end && !last_end_ns.compare_exchange_weak(last_end, when.ended_ns, relaxed)) {
  }
  if (when.ended_ns > last_end) active_ns.fetch_add(static_cast<std::uint64_t>(when.ended_ns - std::max(when.began_ns, last_end)), relaxed);
}

std::uint64_t not_negative(std::int64_t nanoseconds) noexcept { return static_cast<std::uint64_t>(std::max<std::int64_t>(nanoseconds, 0)); }

// Paths beyond the available slots are counted in the last one.
std::size_t index_of(path_kind path) noexcept { return std::min(static_cast<std::size_t>(path), board_layout::most_paths - 1); }

void add_path(engine_stats& to, const board_layout::path_counters& from) {
  const auto name = from.name.get();
  if (name.empty()) return;
  auto known = std::find_if(to.by_path.begin(), to.by_path.end(), [&](const path_stats& each) { return each.name == name; });
  if (known == to.by_path.end()) {
    known = to.by_path.insert(known, path_stats{});
    known->name = name;
  }
  known->operations += from.operations.load(relaxed);
  const auto written = from.written_bytes.load(relaxed);
  known->bytes += from.read_bytes.load(relaxed) + written;
  known->written_bytes += written;
  known->errors += from.errors.load(relaxed);
  known->fallbacks += from.fallbacks.load(relaxed);
  known->busy_ns += from.busy_ns.load(relaxed);
  known->active_ns += from.active_ns.load(relaxed);
  for (std::size_t i = 0; i < from.sizes.size(); ++i) {
    known->size_histogram[i] += from.sizes[i].load(relaxed);
    known->latency_histogram[i] += from.latencies[i].load(relaxed);
  }
  if (auto why = from.last_fallback.get(); !why.empty()) known->last_fallback = std::move(why);
}

void add_channel(engine_stats& to, const board_layout::channel_counters& from) {
  const auto name = from.name.get();
  if (name.empty()) return;
  auto known = std::find_if(to.by_channel.begin(), to.by_channel.end(), [&](const channel_stats& each) { return each.name == name; });
  if (known == to.by_channel.end()) known = to.by_channel.insert(known, channel_stats{name});
  known->sent_tensors += from.sent_tensors.load(relaxed);
  known->sent_bytes += from.sent_bytes.load(relaxed);
  known->received_tensors += from.received_tensors.load(relaxed);
  known->received_bytes += from.received_bytes.load(relaxed);
  known->pushed_tensors += from.pushed_tensors.load(relaxed);
}

}  // namespace

book::book(const path::path_table& table, std::shared_ptr<board> on)
    : table_(table),
      board_(std::move(on)),
      own_(std::make_unique<board_layout::engine_section>()),
      counting_(own_.get()),
      begun_(board_ == nullptr),
      last_fallback_(table.count()) {
  for (std::size_t i = 0; i < std::min(table.count(), own_->paths.size()); ++i)
    own_->paths[i].name.set(table.name(static_cast<path_kind>(i)));
}

book::~book() {
  if (board_ != nullptr && counting_.load() != own_.get()) board_->leave(counting_.load());
}

void book::end_telling() noexcept {
  if (board_ != nullptr && counting_.load() != own_.get()) board_->forget(counting_.load());
}

void book::begin(board_teller& engine) noexcept {
  const std::lock_guard guard(begin_lock_);
  if (begun()) return;
  auto joined = or_no_memory([&] { return board_->join(engine); });
  if (joined) {
    for (std::size_t i = 0; i < own_->paths.size(); ++i) {
      if (i < table_.count()) (*joined)->paths[i].name.set(table_.name(static_cast<path_kind>(i)));
    }
    (*joined)->usage.lanes.store(own_->usage.lanes.load(relaxed), relaxed);
    // Programs register files and memory before their first request. These counts move to the board, because snapshot() adds both.
    for (const auto place : counted_early) (*joined)->usage.each[place].store(own_->usage.each[place].exchange(0, relaxed), relaxed);
    counting_.store(*joined, std::memory_order_release);
  } else {
    board_problem_ = joined.error();
  }
  begun_.store(true, std::memory_order_release);
}

status book::board_problem() const {
  const std::lock_guard guard(begin_lock_);
  return board_problem_;
}

void book::count_piece(path_kind path, bool is_write, std::uint64_t bytes, span when, bool failed) {
  auto& counters = now().paths[index_of(path)];
  const auto nanoseconds = not_negative(when.ended_ns - when.began_ns);
  add_active(counters.active_ns, counters.last_end_ns, when);
  counters.operations.fetch_add(1, relaxed);
  // Adds to one of two counters that only grow. With a total instead, the bytes read could appear to shrink for a moment, which a reader
  // would mistake for a restart.
  (is_write ? counters.written_bytes : counters.read_bytes).fetch_add(bytes, relaxed);
  if (failed) counters.errors.fetch_add(1, relaxed);
  counters.busy_ns.fetch_add(nanoseconds, relaxed);
  counters.sizes[bucket(bytes, 1024)].fetch_add(1, relaxed);
  counters.latencies[bucket(nanoseconds, 1000)].fetch_add(1, relaxed);
}

void book::count_fallback(path_kind path, std::string_view why) {
  auto& counters = now().paths[index_of(path)];
  counters.fallbacks.fetch_add(1, relaxed);
  (void)or_no_memory([&]() -> status {
    std::string told(why);  // before taking the lock, because it may take a while
    const std::lock_guard guard(lock_);
    counters.last_fallback.set(told);
    last_fallback_[static_cast<std::size_t>(path)].swap(told);
    return {};
  });
}

void book::count_requests(bool is_write, std::size_t device, std::uint64_t requests, std::uint64_t bytes) {
  auto& counters = now().devices[device];
  (is_write ? counters.writes : counters.reads).fetch_add(requests, relaxed);
  (is_write ? counters.written_bytes : counters.read_bytes).fetch_add(bytes, relaxed);
}

std::uint64_t book::ended_on_devices() noexcept {
  constexpr std::size_t first_device = 2;  // after the unknown place and the host
  std::uint64_t ended = 0;
  for (std::size_t device = first_device; device < now().devices.size(); ++device)
    ended += now().devices[device].reads + now().devices[device].writes;
  return ended;
}

void book::count_request(bool is_write, std::size_t device, const io_result& outcome) {
  count_requests(is_write, device, 1, outcome.bytes_done);
  if (outcome.ok()) return;
  const errc code = outcome.error.code();
  auto& counters = now();
  (code == errc::cancelled ? counters.cancelled : code == errc::timed_out ? counters.timed_out : counters.failed).fetch_add(1, relaxed);
}

void book::count_use(const use& of, std::uint64_t bytes, std::int64_t nanoseconds) noexcept {
  auto& each = now().usage.each;
  each[of.count].fetch_add(1, relaxed);
  each[of.bytes].fetch_add(bytes, relaxed);
  each[of.ns].fetch_add(not_negative(nanoseconds), relaxed);
}

void book::count_small_call(bool is_write, bool sequential, std::uint64_t bytes, std::int64_t nanoseconds) noexcept {
  constexpr std::int64_t most_ns = 50'000;  // a longer call has waited for a disk or for a core
  if (nanoseconds > most_ns || (is_write && !sequential)) return;
  count_use(!sequential ? lone_reads : is_write ? sequential_writes : sequential_reads, bytes, nanoseconds);
}

void book::count_blocks(std::uint64_t bytes, std::uint64_t extra, std::int64_t nanoseconds) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::block_reads)].fetch_add(1, relaxed);
  counters.each[place_of(&usage_stats::block_read_bytes)].fetch_add(bytes, relaxed);
  counters.each[place_of(&usage_stats::block_extra_bytes)].fetch_add(extra, relaxed);
  counters.each[place_of(&usage_stats::block_read_ns)].fetch_add(not_negative(nanoseconds), relaxed);
}

void book::count_cold(std::uint64_t bytes, std::uint64_t again, span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::cold_read_bytes)].fetch_add(bytes, relaxed);
  counters.each[place_of(&usage_stats::reread_bytes)].fetch_add(again, relaxed);
  add_active(counters.each[place_of(&usage_stats::cold_read_ns)], counters.last_cold_end_ns, when);
}

void book::count_kept(std::uint64_t bytes, span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::kept_read_bytes)].fetch_add(bytes, relaxed);
  add_active(counters.each[place_of(&usage_stats::kept_read_ns)], counters.last_kept_end_ns, when);
}

void book::count_late(std::uint64_t bytes, span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::late_read_bytes)].fetch_add(bytes, relaxed);
  add_active(counters.each[place_of(&usage_stats::late_read_ns)], counters.last_late_end_ns, when);
}

void book::count_registration(std::int64_t nanoseconds, std::uint64_t requests) noexcept {
  constexpr std::uint64_t few = 4;
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::registrations)].fetch_add(1, relaxed);
  counters.each[place_of(&usage_stats::registration_ns)].fetch_add(not_negative(nanoseconds), relaxed);
  if (requests > few) return;
  counters.each[place_of(&usage_stats::short_registrations)].fetch_add(1, relaxed);
  counters.each[place_of(&usage_stats::short_registration_ns)].fetch_add(not_negative(nanoseconds), relaxed);
  counters.each[place_of(&usage_stats::short_registration_requests)].fetch_add(requests, relaxed);
}

void book::waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::slab_waits)].fetch_add(1, relaxed);
  add_active(counters.each[place_of(&usage_stats::slab_wait_ns)], counters.last_wait_end_ns, {began_ns, ended_ns});
}

void book::count_background(std::uint64_t requests, std::uint64_t bytes) noexcept {
  auto& each = now().usage.each;
  each[place_of(&usage_stats::background_requests)].fetch_add(requests, relaxed);
  each[place_of(&usage_stats::background_bytes)].fetch_add(bytes, relaxed);
}

void book::let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::background_waits)].fetch_add(1, relaxed);
  add_active(counters.each[place_of(&usage_stats::background_wait_ns)], counters.last_background_wait_end_ns, {began_ns, ended_ns});
}

void book::count_held(std::uint64_t bytes, span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::held_pieces)].fetch_add(1, relaxed);
  counters.each[place_of(&usage_stats::held_bytes)].fetch_add(bytes, relaxed);
  add_active(counters.each[place_of(&usage_stats::held_ns)], counters.last_held_end_ns, when);
}

void book::count_put_off(span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::remote_put_offs)].fetch_add(1, relaxed);
  add_active(counters.each[place_of(&usage_stats::remote_put_off_ns)], counters.last_put_off_end_ns, when);
}

void book::count_tls_bound(span when) noexcept {
  auto& counters = now().usage;
  add_active(counters.each[place_of(&usage_stats::remote_tls_bound_ns)], counters.last_tls_bound_end_ns, when);
}

void book::count_memory_wait(span when) noexcept {
  auto& counters = now().usage;
  counters.each[place_of(&usage_stats::remote_memory_waits)].fetch_add(1, relaxed);
  add_active(counters.each[place_of(&usage_stats::remote_memory_wait_ns)], counters.last_memory_wait_end_ns, when);
}

void book::count_channel(std::string_view name, const channel_stats& more) noexcept {
  const std::lock_guard guard(lock_);
  std::size_t place = 0;  // channels beyond the available slots are counted in the last one
  while (place + 1 < channel_names_.size() && !channel_names_[place].empty() && channel_names_[place] != name) ++place;
  if (channel_names_[place].empty()) channel_names_[place] = name;
  auto& counters = now().channels[place];
  if (counters.name.changes.load(relaxed) == 0) counters.name.set(channel_names_[place]);
  counters.sent_tensors.fetch_add(more.sent_tensors, relaxed);
  counters.sent_bytes.fetch_add(more.sent_bytes, relaxed);
  counters.received_tensors.fetch_add(more.received_tensors, relaxed);
  counters.received_bytes.fetch_add(more.received_bytes, relaxed);
  counters.pushed_tensors.fetch_add(more.pushed_tensors, relaxed);
}

engine_stats book::snapshot() const {
  engine_stats seen;
  seen.by_path.resize(table_.count());
  for (std::size_t i = 0; i < table_.count(); ++i) seen.by_path[i].name = table_.name(static_cast<path_kind>(i));
  add_section(seen, *own_);
  if (const auto* shared = counting_.load(std::memory_order_acquire); shared != own_.get()) add_section(seen, *shared);
  const std::lock_guard guard(lock_);
  for (std::size_t i = 0; i < last_fallback_.size(); ++i) seen.by_path[i].last_fallback = last_fallback_[i];
  return seen;
}

void add_section(engine_stats& to, const board_layout::engine_section& from) {
  for (const auto& path : from.paths) add_path(to, path);
  for (std::size_t i = 0; i < from.devices.size(); ++i) {
    const auto& device = from.devices[i];
    const device_stats seen{device_name_at(i), device.reads.load(relaxed), device.writes.load(relaxed), device.read_bytes.load(relaxed),
                            device.written_bytes.load(relaxed)};
    if (seen.reads + seen.writes == 0) continue;
    auto known = std::find_if(to.by_device.begin(), to.by_device.end(), [&](const device_stats& each) { return each.name == seen.name; });
    if (known == to.by_device.end()) known = to.by_device.insert(known, {seen.name});
    known->reads += seen.reads;
    known->writes += seen.writes;
    known->read_bytes += seen.read_bytes;
    known->written_bytes += seen.written_bytes;
    to.reads += seen.reads;
    to.writes += seen.writes;
    to.read_bytes += seen.read_bytes;
    to.written_bytes += seen.written_bytes;
  }
  for (std::size_t i = 0; i < counter_table.size(); ++i) to.usage.*counter_table[i].value += from.usage.each[i].load(relaxed);
  for (const auto& channel : from.channels) add_channel(to, channel);
  to.usage.lanes = std::max(to.usage.lanes, static_cast<unsigned>(from.usage.lanes.load(relaxed)));
  to.failed += from.failed.load(relaxed);
  to.cancelled += from.cancelled.load(relaxed);
  to.timed_out += from.timed_out.load(relaxed);
  to.pinned_bytes += from.pinned_bytes.load(relaxed);
  to.pinned_peak_bytes += from.pinned_peak_bytes.load(relaxed);
  to.pinned_file_bytes += from.pinned_file_bytes.load(relaxed);
  to.pinned_file_drops += from.pinned_file_drops.load(relaxed);
}

}  // namespace penstock::stats

namespace penstock {

std::span<const usage_counter> usage_counters() noexcept { return stats::counter_table; }

}  // namespace penstock
