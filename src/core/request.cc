#include "core/request.hpp"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "core/engine_core.hpp"

namespace penstock::core {

namespace {

constexpr std::size_t most_writes_at_once = 12;
// In longer reads enough slabs wait for the link that their lines have left the cores' caches when their turn comes.
constexpr std::uint64_t aging_request_bytes = std::uint64_t{256} << 20;
// What another path left is cut so that whole blocks around a piece fit a slab.
constexpr std::uint64_t rest_bytes = staging::large_slab_bytes / 2;

}  // namespace

status in_context(const status& error, const transfer& what, const file_core& file) {
  if (error.ok() || error.message().find(file.name()) != std::string_view::npos) return error;
  return error.with_context(fmt::format("{} {} at {} of {}", what.is_write ? "write" : "read", what.length, what.offset, file.name()));
}

request::request(std::shared_ptr<engine_core> engine, file_core& file, std::shared_ptr<file_core> keep_file, const transfer& what,
                 const path::memory_view& place, bool may_fall_back)
    : pending(std::move(engine)),
      file_(file),
      keep_file_(std::move(keep_file)),
      what_(what),
      place_(place),
      may_fall_back_(may_fall_back) {}

void request::fill(path::job& added, const planned_piece& piece) {
  added.owner = this;
  added.path = &engine().path(piece.path);
  added.file = &file_.view_if_open();
  added.memory_place = place_;
  added.memory = what_.memory + (piece.offset - what_.offset);
  added.offset = piece.offset;
  added.length = piece.length;
  added.is_write = what_.is_write;
  added.bypass_cache = piece.bypass_cache;
  added.sent_at_once = !place_.emulated && what_.length < aging_request_bytes;
}

void request::start(const std::vector<planned_piece>& pieces, bool alone) {
  std::vector<path::job*> jobs;
  jobs.reserve(pieces.size());
  job_count_ = pieces.size();
  jobs_ = std::make_unique<path::job[]>(job_count_);
  for (std::size_t i = 0; i < job_count_; ++i) {
    fill(jobs_[i], pieces[i]);
    jobs.push_back(&jobs_[i]);
  }
  remaining_.fetch_add(static_cast<std::uint32_t>(jobs.size()));
  make_waves(pieces);
  if (alone) {
    for (auto* item : jobs) {
      item->started_ns = engine().now_ns();
      (void)item->run();
    }
  } else if (place_.on_device() && what_.is_write && jobs.size() > most_writes_at_once) {
    held_ = std::span(jobs_.get() + most_writes_at_once, job_count_ - most_writes_at_once);
    dispatch(std::span(jobs).first(most_writes_at_once));
  } else {
    dispatch(jobs);
  }
  ended();
}

void request::make_waves(const std::vector<planned_piece>& pieces) {
  const auto starts_wave = [](const planned_piece& piece) { return piece.wave > 0; };
  if (std::none_of(pieces.begin(), pieces.end(), [](const planned_piece& piece) { return piece.wave != 1; })) return;
  waves_ = std::make_unique<path::wave[]>(static_cast<std::size_t>(std::count_if(pieces.begin(), pieces.end(), starts_wave)));
  path::wave* next = waves_.get();
  for (std::size_t i = 0; i < pieces.size(); i += pieces[i].wave) {
    if (pieces[i].wave == 1) continue;
    auto& made = *next++;
    made.offset = jobs_[i].offset;
    made.memory = jobs_[i].memory;
    made.first = &jobs_[i];
    made.count = pieces[i].wave;
    made.remaining.store(made.count);
    for (std::size_t j = i; j < i + made.count; ++j) {
      jobs_[j].shared = &made;
      jobs_[j].with_next = j + 1 < i + made.count;
      made.length += jobs_[j].length;
    }
  }
}

void request::run_next_held() {
  path::job* next = nullptr;
  {
    const std::lock_guard guard(lock_);
    if (held_.empty()) return;
    next = &held_.front();
    held_ = held_.subspan(1);
  }
  dispatch(std::span<path::job* const>(&next, 1));
}

void request::dispatch(std::span<path::job* const> jobs) {
  const auto now = engine().now_ns();
  const bool rings = engine().disk().available().ok();
  struct chain {
    staging::work* first = nullptr;
    staging::work* last = nullptr;
    std::size_t count = 0;
    void add(path::job& item) {
      (last == nullptr ? first : last->next_work) = &item;
      last = &item;
      ++count;
    }
  } cpu, disk;
  for (auto* item : jobs) {
    item->started_ns = now;
    item->on_disk_lane = rings && item->bypass_cache && !item->is_write;
    (item->on_disk_lane ? disk : cpu).add(*item);
  }
  if (disk.count > 0) engine().disk().push(disk_works, *disk.first, *disk.last, disk.count);
  if (cpu.count == 0) return;
  auto queued = engine().lanes().push(cpu_works, *cpu.first, *cpu.last, cpu.count);
  if (queued.ok()) return;
  // No thread could be started: the caller does the work.
  for (auto* item = cpu.first; item != nullptr;) {
    auto* next = item->next_work;
    (void)item->run();
    item = next;
  }
}

void request::help() {
  while (!done() && engine().lanes().help(cpu_works)) engine().feeders().pump();
}

void request::fail(status why) {
  {
    const std::lock_guard guard(lock_);
    first_error_at_ = 0;
    first_error_ = std::move(why);
  }
  ended();
}

void request::finished(path::job& ended_job, std::uint64_t bytes, status error) {
  engine().stats().count_piece(ended_job.path->kind(), bytes, {ended_job.started_ns, engine_core::now_ns()}, !error.ok());
  ended_job.done = ended_job.prior + bytes;
  if (!error.ok()) {
    const std::lock_guard guard(lock_);
    if (ended_job.offset < first_error_at_) {
      first_error_at_ = ended_job.offset;
      first_error_ = std::move(error);
    }
  }
  if (what_.is_write) run_next_held();
  ended();
}

// The next path after direct and mapped is staged through the page cache, and so it is after staged past the cache.
void request::hand_over(path::job& refused, status why) {
  engine().stats().count_fallback(refused.path->kind(), why.message());
  const bool staged_direct = refused.path->kind() == path_kind::staged && refused.bypass_cache;
  const bool other_left = staged_direct ? refused.file->cached_fd >= 0 : refused.path->kind() != path_kind::staged;
  if (!refused.ranges.empty() || !other_left || (!may_fall_back_ && !staged_direct)) {
    finished(refused, refused.moved, std::move(why));
    return;
  }
  // The part that was moved is done; the rest becomes new jobs, cut for slabs.
  const std::uint64_t moved = refused.moved;
  std::vector<path::job*> jobs;
  {
    const std::lock_guard guard(lock_);
    for (std::uint64_t at = moved; at < refused.length; at += rest_bytes) {
      const planned_piece rest{refused.offset + at, std::min(rest_bytes, refused.length - at), path_kind::staged,
                               refused.file->cached_fd < 0, plan_reason::forced};
      fill(later_jobs_.emplace_back(), rest);
      jobs.push_back(&later_jobs_.back());
    }
    refused.length = moved;
    remaining_.fetch_add(static_cast<std::uint32_t>(jobs.size()));
  }
  dispatch(jobs);
  finished(refused, moved, {});
}

void request::ended() {
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  io_result outcome = sum_up();
  outcome.error = in_context(outcome.error, what_, file_);
  engine().stats().count_request(what_.is_write, outcome);
  // Told before the file is let go: whoever closes the file may then count on it.
  if (on_end_) std::exchange(on_end_, {})(outcome);
  if (begun_) file_.end();
  complete(std::move(outcome));
}

// Jobs end in any order; what counts is the part from the start on that has no gap.
io_result request::sum_up() {
  std::vector<const path::job*> order;
  order.reserve(job_count_ + later_jobs_.size());
  for (std::size_t i = 0; i < job_count_; ++i) order.push_back(&jobs_[i]);
  for (const auto& item : later_jobs_) order.push_back(&item);
  if (!later_jobs_.empty()) std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  io_result total;
  for (const auto* item : order) {
    total.bytes_done += item->done;
    if (item->done < item->length) {
      // A gap without an error of its own is the end of the file, and later errors do not matter.
      if (first_error_at_ <= item->offset) total.error = first_error_;
      break;
    }
  }
  if (order.empty()) total.error = first_error_;
  if (total.ok() && first_error_at_ != ~std::uint64_t{0} && total.bytes_done == what_.length) total.error = first_error_;
  return total;
}

}  // namespace penstock::core
