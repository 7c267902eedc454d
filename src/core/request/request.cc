#include "core/request/request.hpp"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <new>
#include <utility>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/request/usage.hpp"

namespace penstock::core {

namespace {

using path::way;

// The rest that another path has left is cut so that a piece, extended to whole blocks, fits into a slab.
constexpr std::uint64_t rest_bytes = staging::large_slab_bytes / 2;

// Lets paths prepare their jobs. Passes all adjacent jobs of one path at once.
void prepare(std::span<path::job> jobs) {
  while (!jobs.empty()) {
    auto* const by = jobs.front().path;
    const auto end = std::find_if(jobs.begin(), jobs.end(), [&](const path::job& item) { return item.path != by; });
    const auto row = jobs.first(static_cast<std::size_t>(end - jobs.begin()));
    by->prepare(row);
    jobs = jobs.subspan(row.size());
  }
}

}  // namespace

request::request(std::shared_ptr<core::runtime> with, admission admitted, const io_options& options, std::vector<path::row_part> row)
    : operation(std::move(with)),
      admitted_(std::move(admitted)),
      options_(options),
      row_(std::move(row)),
      cursor_(admitted_.what().offset) {
  admitted_.file().mount().direct(queues_, options.priority);
  if (queues_.background) admitted_.file().mount().right_of_way().begin_background();
  queues_.waiting = &admitted_.file().mount().waiting(admitted_.place().on_device());
  queues_.turns = admitted_.file().turns(options);
  planning_work_.owner = this;
  if (row_.empty()) admitted_.list();
  runtime().asked_bytes().fetch_add(admitted_.what().length, std::memory_order_relaxed);
  set_deadline(options.deadline);
}

void request::begin() noexcept {
  // If work is waiting for every lane, one lane per short request is best, because cutting would only cost time.
  constexpr std::uint64_t least_shared = std::uint64_t{32} << 20;
  const bool crowded = queues_.lanes->backlog() >= queues_.lanes->count() && admitted_.what().length < least_shared;
  // Background pieces are not shared by several lanes, so that each completes soon after it starts.
  const unsigned lanes = crowded || queues_.background ? 1 : runtime().lane_count(options_);
  auto planned = or_no_memory([&] { return plan({lanes, crowded, !row_.empty()}); });
  planned.ok() ? start(false) : fail(std::move(planned));
}

// --- planning

status request::plan(const cutting& how) {
  assert(admitted_.route().by != carrier::undecided);
  how_ = how;
  how_.short_pieces = queues_.background || admitted_.file().is_limited();
  neighbours_ = neighbours_of(runtime(), admitted_.what(), admitted_.place(), options_);
  if (auto problem = watch_deadline(); !problem.ok()) return problem;
  auto& first = sections_[0];
  if (auto problem = plan_section(first); !problem.ok()) return problem;
  if (first.length == 0) {
    no_more_ = true;
  } else {
    planned_ = 1;
    past_size_ = first.past_size;
    cursor_ += first.length;
    if (!admitted_.what().is_write) admitted_.file().planned(admitted_.what().offset + admitted_.what().length);
  }
  return {};
}

// Plans the pieces starting at cursor_ and makes jobs for them. The length is 0 if the file ends there.
status request::plan_section(section& next) {
  auto whole = admitted_.what();
  auto rest = whole;
  rest.offset = cursor_;
  rest.length -= cursor_ - whole.offset;
  if (row_.empty()) rest.memory += cursor_ - whole.offset;
  next.length = 0;
  if (rest.length == 0) return {};
  if (cursor_ > whole.offset) {
    if (auto stop = stop_reason(); !stop.ok()) return stop;
  }
  auto how = how_;
  if (!whole.is_write) {
    const auto found = readable(admitted_.file().source(), rest);
    if (!found) return found.error();
    rest.length = found->length;
    whole.length = cursor_ - whole.offset + rest.length;
    next.past_size = found->past_size;
    // Files that report no size are usually generated as they are read (/proc). One sequential reader is fastest.
    if (found->past_size) how.lanes = 1;
  }
  if (rest.length == 0) return {};
  auto pieces = decide(runtime(), admitted_.file(), rest, whole, admitted_.place(), options_, admitted_.route().cache, how);
  if (!pieces) return pieces.error();
  next.pieces = *std::move(pieces);
  next.offset = rest.offset;
  next.job_count = next.pieces.size();
  next.jobs = std::make_unique<path::job[]>(next.job_count);
  next.later_jobs.clear();
  const auto index = static_cast<std::uint32_t>(&next - sections_.data());
  for (std::size_t i = 0; i < next.job_count; ++i) fill(next.jobs[i], next.pieces[i], index);
  prepare({next.jobs.get(), next.job_count});
  next.remaining.store(static_cast<std::uint32_t>(next.job_count) + 1);
  next.over = false;
  next.length = length_of(next.pieces);
  return {};
}

void request::fill(path::job& added, const planned_piece& piece, std::uint32_t part) noexcept {
  added.owner = this;
  added.queues = &queues_;
  added.path = &runtime().path(piece.path);
  added.file = &admitted_.file().source();
  added.place = admitted_.place();
  if (row_.empty()) added.memory = admitted_.what().memory + (piece.offset - admitted_.what().offset);
  added.row = row_;
  added.neighbours = neighbours_;
  added.offset = piece.offset;
  added.length = piece.length;
  added.is_write = admitted_.what().is_write;
  added.way = piece.way;
  added.spares_cache = spares_cache(admitted_.file(), added.is_write, piece.length, admitted_.route().cache);
  added.is_forced = runtime().forced(options_);
  added.spares_cpu = runtime().preference_of(options_) == preference::cpu;
  added.waits = piece.waits;
  added.times = added.is_write ? nullptr : admitted_.file().answer_times();
  if (piece.reason == plan_reason::bypass_tried) admitted_.file().cold_speeds().tries(piece.length);
  added.unaligned = piece.reason == plan_reason::unaligned_edge || piece.reason == plan_reason::unaligned_read_edge ||
                    piece.reason == plan_reason::too_little_aligned;
  added.wave = piece.wave;
  added.asked_bytes = runtime().asked_bytes().load(std::memory_order_relaxed);
  added.part = part;
}

bool request::claim_planning() noexcept {
  // More concurrent writes to the page cache would only evict each other from the CPU's cache.
  const std::size_t most_sections = past_size_ || (admitted_.what().is_write && admitted_.place().on_device()) ? 1 : sections_.size();
  if (planning_ || no_more_ || planned_ - folded_ >= most_sections || cursor_ - admitted_.what().offset == admitted_.what().length)
    return false;
  return planning_ = true;
}

// Plans and launches sections while there is room for them. The caller has set planning_.
void request::plan_more() noexcept {
  for (bool more = true; more;) {
    section* next = &sections_[planned_ % sections_.size()];  // no other thread plans or touches it
    auto problem = or_no_memory([&] { return plan_section(*next); });
    bool over = false;
    {
      const std::lock_guard guard(lock_);
      assert(planning_ && !finished_);
      planning_ = false;
      if (!problem.ok()) note_error(cursor_, std::move(problem));
      no_more_ = no_more_ || first_error_at_ == cursor_ || next->length == 0;
      if (no_more_) {
        next = nullptr;
      } else {
        ++planned_;
        past_size_ = next->past_size;
        cursor_ += next->length;
      }
      more = claim_planning();
      over = is_over();
    }
    if (next != nullptr) launch(*next, false);
    if (over) finish();
  }
}

bool request::planning_work::run() {
  auto& of = *owner;
  of.plan_more();
  of.release();
  return true;
}

// --- running

void request::start(bool alone) noexcept {
  const timed_ref here(*this);
  const bool any = planned_ > 0;
  bool more = false;
  bool over = false;
  {
    const std::lock_guard guard(lock_);
    more = claim_planning();
    over = is_over();
  }
  if (any) launch(sections_[0], alone);
  if (more) plan_more();
  if (over) finish();
}

// More would only wait, each one holding a slab.
std::size_t request::most_writes_at_once() const noexcept { return queues_.background ? 2 : 12; }

template <class Jobs>
void request::begin_jobs(Jobs& jobs) noexcept {
  if (queues_.background) return;
  std::uint64_t count = 0;
  for (auto& item : jobs) {
    item.has_right_of_way = true;
    ++count;
  }
  admitted_.file().mount().right_of_way().enter(count);
}

void request::launch(section& next, bool alone) noexcept {
  const std::span<path::job> jobs(next.jobs.get(), next.job_count);
  if (alone) {
    begin_jobs(jobs);
    for (auto& item : jobs) {
      item.started_ns = now_ns();
      (void)item.run();
    }
  } else if (admitted_.place().on_device() && admitted_.what().is_write && jobs.size() > most_writes_at_once()) {
    {
      const std::lock_guard guard(lock_);
      next.held = jobs.subspan(most_writes_at_once());
    }
    auto first = jobs.first(most_writes_at_once());
    dispatch(first);
  } else {
    dispatch(jobs);
  }
  job_ended(next);
}

// Queues jobs on the lanes. Passes them through the rate limits, if there are any.
template <class Jobs>
void request::dispatch(Jobs& jobs) noexcept {
  auto& file = admitted_.file();
  if (!file.is_limited()) {
    queue(jobs);
  } else {
    staging::work_chain all;
    for (auto& item : jobs) all.add(item);
    if (file.rate_limit() != nullptr) {
      file.rate_limit()->hold(held_by_file_, all, queues_.background);
    } else {
      for (auto& item : jobs) item.passed_file_limit = true;
      runtime().rate_limit()->hold(held_by_engine_, all, queues_.background);
    }
  }
  // A thread that stopped the request may have done so before there were jobs to end.
  if (!stop_reason().ok()) end_jobs();
}

// This may be destroyed when the job completes.
void request::passed(path::job& item) noexcept {
  const timed_ref here(*this);
  if (auto* const next = runtime().rate_limit(); next != nullptr && !std::exchange(item.passed_file_limit, true)) {
    staging::work_chain one;
    one.add(item);
    next->hold(held_by_engine_, one, queues_.background);
  } else {
    std::span<path::job> one(&item, 1);
    queue(one);
  }
  if (!stop_reason().ok()) end_jobs();
}

template <class Jobs>
void request::queue(Jobs& jobs) noexcept {
  const auto now = now_ns();
  staging::work_chain cpu;
  staging::work_chain disk;
  staging::work_chain keeping;
  staging::work_chain waiting;
  staging::work_chain far;
  std::optional<bool> rings;  // looked up only for jobs that can use rings, because the first lookup creates them, and not when a copy
                              // completes
  for (auto& item : jobs) {
    item.started_ns = now;
    const bool past_cache = item.way == way::past_cache && item.file->descriptors().direct >= 0;
    if (past_cache && !rings) rings = queues_.has_rings();
    item.on_disk_lane = past_cache && *rings && !item.is_write;
    const bool waits = item.waits && !item.on_disk_lane;
    if (waits) item.times = admitted_.file().thread_answer_times();
    auto& chain = item.on_disk_lane ? disk : waits ? waiting : item.way == way::filling ? keeping : item.way == way::far ? far : cpu;
    chain.add(item);
  }
  begin_jobs(jobs);
  if (disk.count > 0) queues_.disk->push(queues_.disk_works, *disk.first, *disk.last, disk.count);
  queues_.keeping->push_or_run(queues_.keeping_works, keeping);
  queues_.waiting->push_or_run(queues_.waiting_works, waiting);
  queues_.lanes->push_or_run(queues_.cpu_works, cpu);
  if (far.count > 0) queues_.turns->push(queues_.far_works, far);
}

// Ends those jobs of a stopped request that have not started.
void request::end_jobs() {
  auto* const of_file = admitted_.file().rate_limit();
  while (of_file != nullptr && of_file->help(held_by_file_, queues_.background)) {
  }
  auto* const of_engine = runtime().rate_limit();
  while (of_engine != nullptr && of_engine->help(held_by_engine_, queues_.background)) {
  }
  path::end_queued(queues_);
}

void request::help() {
  while (!done() && queues_.lanes->help(queues_.cpu_works)) runtime().feeders().pump();
}

void request::end_queued() {
  end_jobs();
  for (auto& each : sections_) run_next_held(each);
}

void request::fail(status why) noexcept {
  {
    const std::lock_guard guard(lock_);
    assert(!finished_ && !planning_);
    note_error(0, std::move(why));
    no_more_ = true;
    finished_ = true;
  }
  finish();
}

// --- completion of jobs

void request::note_error(std::uint64_t offset, status error) noexcept {
  if (offset >= first_error_at_) return;
  first_error_at_ = offset;
  first_error_ = std::move(error);
}

void request::begins(path::job& item) noexcept {
  item.node = runtime().kernel().current_node();
  const bool cold = !admitted_.what().is_write && (item.way == way::filling || item.way == way::past_cache);
  if (!cold || admitted_.what().length < cold_speeds::least_request_bytes) return;
  if (item.begun_ns != 0) return;  // a disk lane that had no slab for it starts it again later
  admitted_.file().cold_speeds().begins(item.way == way::past_cache);
  item.begun_ns = now_ns();
}

void request::note(path::job& ended, std::uint64_t bytes, status error) noexcept {
  // The request was stopped after all of its work was done.
  if (bytes == ended.length && (error.code() == errc::cancelled || error.code() == errc::timed_out)) error = {};
  const auto now = now_ns();
  runtime().stats().count_piece(ended.path->kind(), ended.is_write, bytes, {ended.started_ns, now}, !error.ok());
  const auto stays_out = [&] { return or_no_memory([&] { return ended.file->uncached_problem(); }).ok(); };
  if (ended.spares_cache && ended.way != way::past_cache && stays_out()) runtime().stats().count_uncached(bytes);
  note_use(runtime(), admitted_.file(), ended, bytes, now);
  if (ended.begun_ns != 0)
    admitted_.file().cold_speeds().note({ended.way == way::past_cache, bytes, ended.begun_ns, now, ended.filling_cpu_ns});
  ended.done = bytes;
  if (error.ok()) return;
  const std::lock_guard guard(lock_);
  note_error(ended.offset, std::move(error));
}

void request::finished(path::job& ended, std::uint64_t bytes, status error) {
  auto& of = sections_[ended.part];
  if (ended.has_right_of_way) admitted_.file().mount().right_of_way().leave();
  note(ended, bytes, std::move(error));
  if (admitted_.what().is_write) run_next_held(of);
  job_ended(of);
}

// The jobs of a stopped request end here, one after another.
void request::run_next_held(section& of) noexcept {
  for (;;) {
    std::span<path::job> next;
    {
      const std::lock_guard guard(lock_);
      if (of.held.empty()) return;
      next = of.held.first(1);
      of.held = of.held.subspan(1);
    }
    auto stop = stop_reason();
    if (stop.ok()) {
      dispatch(next);
      return;
    }
    note(next.front(), 0, std::move(stop));
    job_ended(of);
  }
}

// If a job past the page cache is refused and the file has a cached descriptor, the job continues through the page cache on the same path.
// Otherwise the path's successor transfers the rest.
void request::hand_over(path::job& refused, status why) {
  runtime().stats().count_fallback(refused.path->kind(), why.message());
  const bool again = refused.way == way::past_cache && refused.file->cached_problem().ok();
  const auto successor = runtime().forced(options_) ? path_kind::automatic : runtime().paths().successor(refused.path->kind());
  const auto next = again ? refused.path->kind() : successor;
  // The bytes transferred so far are done. The rest becomes new jobs, cut to fit into slabs.
  const std::uint64_t moved = refused.moved;
  std::list<path::job> rest;
  if (refused.ranges.empty() && next != path_kind::automatic) {
    const auto made = or_no_memory([&]() -> status {
      for (std::uint64_t at = moved; at < refused.length; at += rest_bytes) {
        auto& added = rest.emplace_back();
        fill(added,
             {refused.offset + at, std::min(rest_bytes, refused.length - at), next,
              refused.file->cached_problem().ok() ? way::cached : way::past_cache, plan_reason::forced},
             refused.part);
        added.waits = refused.waits;
        prepare({&added, 1});
      }
      return {};
    });
    if (!made.ok()) {
      rest.clear();
      why = made;
    }
  }
  if (rest.empty()) {
    finished(refused, moved, std::move(why));
    return;
  }
  auto& of = sections_[refused.part];
  of.remaining.fetch_add(static_cast<std::uint32_t>(rest.size()));
  refused.length = moved;
  dispatch(rest);
  {
    const std::lock_guard guard(lock_);
    of.later_jobs.splice(of.later_jobs.end(), rest);
  }
  finished(refused, moved, {});
}

void request::did_without(const path::job& carried, const status& why) {
  runtime().stats().count_fallback(carried.path->kind(), why.message());
}

// The last job of a section adds the section to the total, in order, and makes room for another section.
void request::job_ended(section& of) noexcept {
  const auto before = of.remaining.fetch_sub(1, std::memory_order_acq_rel);
  assert(before > 0);
  if (before != 1) return;
  bool more = false;
  bool over = false;
  const bool tells = static_cast<bool>(on_progress_);
  std::uint64_t moved = 0;
  {
    const std::lock_guard guard(lock_);
    assert(!of.over && !finished_);
    of.over = true;
    while (folded_ < planned_ && sections_[folded_ % sections_.size()].over) fold(sections_[folded_++ % sections_.size()]);
    more = claim_planning();
    if (tells) ++telling_;
    moved = bytes_done_;
    over = is_over();
  }
  if (more) {
    // Not on this thread, which may be the one that handles copies: planning calls the file system.
    retain();
    queues_.lanes->push_urgent(queues_.urgent_works, planning_work_);
  }
  if (tells) {
    on_progress_(moved);
    const std::lock_guard guard(lock_);
    --telling_;
    over = is_over();
  }
  if (over) finish();
}

// Jobs complete in any order. Only the part from the start up to the first gap counts.
void request::fold(section& ended) noexcept {
  ended.over = false;
  auto& later = ended.later_jobs;
  later.sort([](const path::job& a, const path::job& b) { return a.offset < b.offset; });
  auto next_later = later.begin();
  const auto count = [&](const path::job& item) {
    if (gap_at_ != none) return;
    bytes_done_ += item.done;
    if (item.path->declared().gpu_direct) direct_bytes_ += item.done;
    if (item.done < item.length) gap_at_ = item.offset;
  };
  for (std::size_t i = 0; i < ended.job_count; ++i) {
    for (; next_later != later.end() && next_later->offset < ended.jobs[i].offset; ++next_later) count(*next_later);
    count(ended.jobs[i]);
  }
  for (; next_later != later.end(); ++next_later) count(*next_later);
  no_more_ = no_more_ || gap_at_ != none || first_error_at_ != none;
}

bool request::is_over() noexcept {
  const bool all_planned = no_more_ || cursor_ - admitted_.what().offset == admitted_.what().length;
  if (finished_ || planning_ || telling_ > 0 || planned_ != folded_ || !all_planned) return false;
  return finished_ = true;
}

// A gap without an error is the end of the file; later errors do not matter.
void request::finish() noexcept {
  io_result outcome;
  {
    const std::lock_guard guard(lock_);
    outcome.bytes_done = bytes_done_;
    outcome.direct_bytes = direct_bytes_;
    if (first_error_at_ != none && (gap_at_ == none || first_error_at_ <= gap_at_)) outcome.error = first_error_;
  }
  runtime().asked_bytes().fetch_sub(admitted_.what().length, std::memory_order_relaxed);
  if (queues_.background) admitted_.file().mount().right_of_way().end_background();
  if (row_.empty()) admitted_.count(outcome);
  // This must precede the release of the file, so that a thread that closes the file can rely on it.
  if (on_end_) std::exchange(on_end_, {})(outcome);
  admitted_.let_go();
  complete(std::move(outcome));
}

}  // namespace penstock::core
