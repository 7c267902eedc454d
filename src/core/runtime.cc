#include "core/runtime.hpp"

#include <time.h>

#include <algorithm>

#include <fmt/format.h>

namespace penstock::core {

namespace {

using namespace std::chrono_literals;

// One link needs 12 lanes if a core copies 4.5 GB/s from the page cache, or 8 if it copies 7 GB/s. Each further link needs as many. (Two
// H100s, 32 cores: 24 and 28 lanes read a cached file at 86 and 88 GB/s; 16 and 20 lanes reach at most 46.)
staging::lanes::crew choose_lanes(const engine_options& options, unsigned cores) {
  if (options.lanes != 0) return {options.lanes};
  const unsigned most = std::clamp(cores * 3 / 4, 2U, staging::lanes::most_lanes);
  return {most, std::min(most, staging::lanes::most_of_one_link), true};
}

}  // namespace

// For lanes: enough for a link's 55 GB/s during the 1.5 ms that filling and sending a slab take, and for callers that read by themselves.
// For disk lanes: their buffers. Never the whole budget, so that a hanging file system leaves memory for the others.
runtime::pinned_share runtime::share_of_each_mount(const engine_options& options, unsigned lanes, unsigned cores) {
  constexpr std::size_t of_each = std::size_t{12} << 20;
  const std::size_t slabs = std::min(lanes, 16U);
  const std::size_t disk_slabs = staging::disk_lanes::usual_count(cores) * staging::disk_lanes::tasks_in_flight;
  const std::size_t for_cpu = std::max(std::size_t{64} << 20, slabs * of_each);
  return {std::min(for_cpu, options.pinned_budget_bytes / 2), std::min(disk_slabs * of_each, options.pinned_budget_bytes / 4),
          for_cpu > options.pinned_budget_bytes / 2};
}

// With this much of the lanes' slabs pinned per link, cached reads reach 0.95 of the link's speed, and the first read does not wait for the
// rest to be pinned. (H200: a first read of 4.4 GB runs at 46 GB/s, or at 39 GB/s while 180 MiB are pinned.) Two links that share the
// memory of one reach 64 of 104 GB/s.
constexpr std::size_t pinned_at_once_bytes = std::size_t{32} << 20;

// The threads that receive from servers. One core receives 5 to 6 GB/s without TLS; eight cores saturate the memory (H200 machine, 16
// cores).
constexpr unsigned most_web_threads = 8;

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::int64_t about_now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);  // steady_clock is CLOCK_MONOTONIC
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

runtime::runtime(const engine_options& options, seams doors)
    : options_(options),
      doors_(std::move(doors)),
      cores_(doors_.kernel->usable_cores()),
      lanes_(choose_lanes(options, cores_)),
      path_table_(doors_.further_paths),
      stats_(path_table_, doors_.board),
      budget_(options.pinned_budget_bytes),
      remote_counting_(stats_),
      far_share_(staging::share_far(options.pinned_budget_bytes), &remote_counting_),
      share_(share_of_each_mount(options, lanes_.most, cores_)),
      cuda_pool_(*doors_.kernel, budget_, share_.for_cpu, share_.for_disk),
      host_pool_(*doors_.kernel, budget_, share_.for_cpu, share_.for_disk),
      memory_(doors_.cuda, doors_.host, *doors_.kernel, feeders_, cuda_pool_, host_pool_, fork_guard_),
      pinned_pages_(*doors_.kernel, fork_guard_),
      kept_pages_(pinned_pages_, fork_guard_, [this] { return most_kept_bytes(); }),
      callbacks_(1, !few_cores() ? 50us : 0us, nullptr, "penstock-cb"),
      stream_watch_(!few_cores() ? 100us : 0us),
      rate_limit_(options.bytes_per_second > 0 ? new core::rate_limit(options.bytes_per_second, deadlines_, stats_) : nullptr),
      ahead_(new ahead_book(deadlines_)),
      memory_left_(*doors_.kernel) {
  stats_.set_lanes(lanes_.usual);
  cuda_pool_.grow_slowly(pinned_at_once_bytes);
  cuda_pool_.tell_of_waits(stats_, share_.is_cut);
  host_pool_.tell_of_waits(stats_, share_.is_cut);
  for (auto* pool : {&cuda_pool_, &host_pool_})
    pool->ask_back([](void* book) { static_cast<ahead_book*>(book)->give_back(); }, ahead_.get());
  paths_ = path_table_.make({doors_.kernel, &feeders_, options_.cufile_library, options_.cufile, options_.gpu_direct_piece_bytes,
                             &pinned_pages_, &kept_pages_, [this] { return stats_.ended_on_devices(); }, options_.use_io_uring});
}

runtime::~runtime() {
  while (feeders_.outstanding()) feeders_.pump();
  paths_.clear();
}

source::remote::servers& runtime::servers() {
  const std::lock_guard guard(making_servers_);
  if (servers_ == nullptr) {
    auto settings = doors_.web;
    settings.told = &remote_counting_;
    settings.stop_requested = options_.stop_requested;
    if (settings.threads == 0) settings.threads = std::clamp(cores_, 1U, most_web_threads);
    servers_ = std::make_unique<source::remote::servers>(
        settings,
        source::remote::surroundings{
            doors_.variable, doors_.kernel, {options_.node_cache_dir, options_.node_cache_bytes}, options_.allow_credential_process});
  }
  return *servers_;
}

void runtime::widen_pools() {
  for (auto* pool : {&cuda_pool_, &host_pool_}) pool->widen(share_.for_cpu, share_.for_disk);
}

status runtime::register_memory(void* memory, std::size_t bytes) {
  const auto began = now_ns();
  const auto place = memory_.register_range(memory, bytes);
  if (!place) return place.error();
  status kept;
  for (const auto kind : path_table_.by_rank()) {
    if (kept.ok() && place->on_device()) kept = path(kind).remember_memory(*place, static_cast<std::byte*>(memory), bytes);
  }
  memory_.note_cost(memory, now_ns() - began);
  if (kept.ok()) return {};
  unregister_memory(memory);
  return kept.with_context("register_memory");
}

void runtime::unregister_memory(void* memory) {
  if (forked()) return;
  const auto began = now_ns();
  for (const auto kind : path_table_.by_rank()) path(kind).forget_memory(static_cast<std::byte*>(memory));
  const auto ended = memory_.unregister_range(memory);
  if (ended) stats_.count_registration(ended->cost_ns + now_ns() - began, ended->served);
}

// The kernel counts registered pages as available because they are in the page cache, although they cannot be reclaimed.
bool runtime::is_short_with(std::uint64_t pinned_file_bytes) noexcept {
  constexpr std::uint64_t spared_share = 16;
  const auto memory = memory_left_.at(about_now_ns());
  return memory && memory->available_bytes < pinned_file_bytes + memory->total_bytes / spared_share;
}

void runtime::give_up_pinned_pages_where_short() noexcept {
  if (pinned_pages_.empty() || forked() || !is_short_with(pinned_pages_.used_bytes())) return;
  if (kept_pages_.trim() && !is_short_with(pinned_pages_.used_bytes())) return;  // no user requested these
  pinned_pages_.drop_all({errc::out_of_memory, "memory ran short"});
}

std::uint64_t runtime::most_pinned_bytes() noexcept {
  constexpr std::uint64_t usual_share = 4;                       // 1/N of all memory
  constexpr std::uint64_t usual_bytes = std::uint64_t{1} << 30;  // if the kernel does not report its memory
  if (options_.pinned_file_budget_bytes > 0) return options_.pinned_file_budget_bytes;
  const auto memory = memory_left_.at(about_now_ns());
  return memory ? memory->total_bytes / usual_share : usual_bytes;
}

// Half as much as users may pin, in addition to their pins.
std::uint64_t runtime::most_kept_bytes() noexcept {
  return forked() || is_short_with(pinned_pages_.used_bytes()) ? 0 : most_pinned_bytes() / 2;
}

status runtime::has_room_to_pin(std::uint64_t bytes) {
  if (!is_short_with(pinned_pages_.used_bytes() + bytes)) return {};
  return {errc::out_of_memory, fmt::format("not enough memory to pin {} bytes", bytes)};
}

beside_files& runtime::beside(std::unique_ptr<beside_files> (*make)(runtime& with)) {
  const std::lock_guard guard(making_beside_);
  if (made_beside_ == nullptr) {
    made_beside_ = make(*this);
    beside_.store(made_beside_.get(), std::memory_order_release);
  }
  return *made_beside_;
}

std::size_t runtime::trim_pools() { return cuda_pool_.trim() + host_pool_.trim() + (beside() != nullptr ? beside()->trim() : 0); }

void runtime::forget(const source::source& closing) {
  if (forked()) return;
  for (auto& each : paths_) {
    if (each != nullptr) each->forget(closing);
  }
}

void runtime::release_memory(std::string_view device, void* memory) {
  if (forked()) return;
  for (const auto kind : path_table_.by_rank()) path(kind).memory_ends(static_cast<std::byte*>(memory));
  memory_.release(device, memory);
}

void runtime::release_shared(std::string_view device, void* base) {
  if (forked()) return;
  for (const auto kind : path_table_.by_rank()) path(kind).memory_ends(static_cast<std::byte*>(base));
  memory_.close_shared(device, base);
}

void runtime::trim_paths() {
  for (const auto kind : path_table_.by_rank()) path(kind).trim();
}

status runtime::rest_servers(deadline_clock::time_point until) {
  ahead_->give_back();
  const std::lock_guard guard(making_servers_);
  return servers_ == nullptr ? status() : servers_->rest(until);
}

status runtime::rest_shared() {
  status problem;
  while (feeders_.outstanding()) feeders_.pump();
  callbacks_.rest();
  stream_watch_.rest();
  deadlines_.rest();
  kept_pages_.rest();
  if (auto* const with = beside()) with->rest();
  for (const auto kind : path_table_.by_rank()) {
    if (auto stays = path(kind).rest(); !stays.ok()) problem = std::move(stays);
  }
  (void)trim_pools();
  feeders_.trim();
  pinned_pages_.unregister_all();
  memory_.rest();
  feeders_.rest();
  if (doors_.board != nullptr) doors_.board->rest();
  return problem;
}

void runtime::wake_shared() noexcept {
  memory_.wake();
  if (doors_.board != nullptr) doors_.board->wake();
}

engine_stats runtime::snapshot() const {
  if (forked()) return {};  // another thread may have held a lock at the time of the fork
  auto seen = stats_.snapshot();
  const auto other = beside() != nullptr ? beside()->pinned_now() : beside_files::pinned{};
  seen.pinned_file_bytes = pinned_pages_.used_bytes();
  seen.pinned_file_drops = pinned_pages_.drops();
  seen.pinned_bytes = budget_.used_bytes.load() + other.bytes;
  seen.pinned_peak_bytes = budget_.peak_bytes.load() + other.peak_bytes;
  return seen;
}

std::chrono::microseconds runtime::batch_spin() const noexcept { return !few_cores() ? 1000us : 0us; }

}  // namespace penstock::core
