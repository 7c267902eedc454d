#include "core/request/collector.hpp"

#include <algorithm>
#include <cassert>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "core/request/usage.hpp"

namespace penstock::core {

namespace {

// The number of 4 KiB blocks that fit in a 1 MiB slab.
constexpr std::size_t most_ranges_per_load = staging::mib / (path::direct_alignment + sizeof(device::segment));
constexpr std::size_t least_ranges_per_load = 32;  // one copy for all of them costs 7 us (H200), reading one of them 1 us
// On an H200 machine, the kernel looks up one range in the page cache in half a microsecond. Looking up all pages that many ranges
// span takes up to 25 ns per page.
constexpr std::size_t asked_ranges = 48;

// The space that the staged path needs for an item in a slab, including its entry in the table.
std::uint64_t room_of(const transfer& item) noexcept { return path::blocks_around(item.offset, item.length) + sizeof(device::segment); }

}  // namespace

// A gathering job and the owner of its ranges: a sender, or single requests. As a work item, it runs the callbacks of the single requests.
// Deletes itself.
class load final : public path::job_owner, public staging::work {
 public:
  // Returns the newest load of this kind in a chain, if it has room for the item. Otherwise returns a new one, which becomes the newest.
  // of: null for single requests. Add the item at once.
  static load& take_for(load*& newest, admission& item, std::size_t most_ranges, collector& by, shipment* of) {
    (void)item.file().source().descriptors();  // opens them here, where no lock is held
    const auto& what = item.what();
    auto* found = newest;
    while (found != nullptr && (found->job.place.via != item.place().via || found->job.is_write != what.is_write)) found = found->older;
    const auto usual = of != nullptr ? of->ranges_per_load_ : most_ranges;
    const auto has_room = [&](const std::vector<path::gather_range>& in) {
      const auto most_room = in.size() < usual ? staging::large_slab_bytes : staging::mib;
      return in.size() < in.capacity() && found->room_ + room_of(what) <= most_room;
    };
    if (found != nullptr && has_room(found->job.ranges)) return *found;
    found = new load(by, of, item, most_ranges);
    found->older = std::exchange(newest, found);
    return *found;
  }
  void add(const admission& item, std::size_t index) noexcept {
    const auto& what = item.what();
    job.ranges.push_back({&item.file().source(),
                          what.offset,
                          what.length,
                          what.memory,
                          static_cast<std::uint32_t>(index),
                          path::residency::unknown,
                          item.route().cache,
                          false,
                          0,
                          {}});
    room_ += room_of(what);
  }

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override;
  void did_without(const path::job& carried, const status& why) override;
  // A stopped sender or request does not have to wait for a slab with the others.
  [[nodiscard]] status stopped() const override;
  [[nodiscard]] status range_stopped(const path::gather_range& range) const override {
    return of_ != nullptr ? of_->from_.stop_reason() : singles[range.index]->stop_reason();
  }
  bool run() override;

  path::job job;
  load* older = nullptr;                // the next older load filled by the same thread
  std::vector<small_request*> singles;  // by index; null: no callback

 private:
  load(collector& by, shipment* of, const admission& first, std::size_t most_ranges) : by_(by), of_(of) {
    by.direct(own_queues_);
    by.is_background() ? by.way_.begin_background() : by.way_.enter();
    job.owner = this;
    job.queues = of != nullptr ? &of->queues_ : &own_queues_;
    job.place = first.place();
    job.path = &by.runtime_.path(by.runtime_.paths().base(job.place.on_device()));
    job.is_write = first.what().is_write;
    if (!job.is_write) job.times = first.file().answer_times();
    job.ranges.reserve(most_ranges);
    if (of == nullptr) singles.reserve(most_ranges);
    job.path->prepare({&job, 1});
  }
  ~load() override = default;
  void fail(const status& error);
  void count(stats::book& stats) noexcept;
  [[nodiscard]] bool tell_singles() noexcept;

  collector& by_;
  shipment* const of_;
  std::uint64_t room_ = 0;
  path::job_queues own_queues_;  // for single requests
};

// --- completion of loads

status load::stopped() const {
  if (of_ != nullptr) return of_->from_.stop_reason();
  for (const auto& range : job.ranges) {
    if (auto why = range_stopped(range); !why.ok()) return why;
  }
  return {};
}

void load::finished(path::job& ended, std::uint64_t bytes, status error) {
  const auto with = by_.runtime_.shared_from_this();  // the last request notified may hold the last reference to it
  with->stats().count_piece(ended.path->kind(), ended.is_write, bytes, {ended.started_ns, now_ns()}, !error.ok());
  by_.is_background() ? by_.way_.end_background() : by_.way_.leave();
  if (of_ == nullptr) by_.arrived(*this);
  if (!error.ok()) fail(error);
  count(with->stats());  // before any thread is notified
  if (of_ != nullptr) {
    of_->from_.carried(job.ranges);
  } else if (tell_singles()) {
    small_request::run_soon(*with, own_queues_.urgent_works, *this);
    return;
  }
  delete this;
}

// An error of the whole job occurs before anything has been transferred. If some requests were stopped, the error may concern only them,
// and the others run again.
void load::fail(const status& error) {
  const bool some_stopped = !stopped().ok();
  for (auto& range : job.ranges) {
    range.moved = 0;
    range.error = some_stopped ? range_stopped(range) : error;
    if (range.error.ok()) by_.add(*std::exchange(singles[range.index], nullptr));
  }
  std::erase_if(job.ranges, [](const path::gather_range& range) { return range.error.ok(); });
}

// Counts the successful requests together.
void load::count(stats::book& stats) noexcept {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;
  bool any_past_cache = false;
  for (auto& range : job.ranges) {
    assert(range.moved <= range.length);
    if (range.error.ok()) {
      ++requests;
      bytes += range.moved;
      any_past_cache |= range.past_cache;
      continue;
    }
    io_result outcome{range.moved, std::move(range.error)};
    (of_ != nullptr ? of_->from_.admission_of(range.index) : singles[range.index]->admitted_).count(outcome);
    range.error = std::move(outcome.error);
  }
  if (requests > 0) stats.count_requests(job.is_write, device_index(job.place), requests, bytes);
  if (requests > 0 && by_.is_background()) stats.count_background(requests, bytes);
  if (!any_past_cache) return;
  const auto file_of = [&](const path::gather_range& range) -> file_core& {
    return (of_ != nullptr ? of_->from_.admission_of(range.index) : singles[range.index]->admitted_).file();
  };
  note_ranges_use(stats, job, file_of);
}

// Returns true if some requests have callbacks to run.
bool load::tell_singles() noexcept {
  bool any = false;
  for (auto& range : job.ranges) {
    auto& each = *singles[range.index];
    each.admitted_.let_go();
    const bool calls_back = each.has_callback();  // once settled, a request without a callback may be destroyed
    each.settle({range.moved, std::move(range.error)});
    any = any || calls_back;
    if (!calls_back) std::exchange(singles[range.index], nullptr)->release();
  }
  return any;
}

bool load::run() {
  for (auto* each : singles) {
    if (each == nullptr) continue;
    each->call_back();
    each->release();
  }
  delete this;
  return true;
}

// Happens only if a ring has failed. The job runs again without one.
void load::hand_over(path::job& refused, status why) {
  by_.runtime_.stats().count_fallback(refused.path->kind(), why.message());
  for (auto& range : refused.ranges) {
    range.moved = 0;
    range.past_cache = false;
    range.error = {};
  }
  if (!by_.lanes_.push(refused.queues->cpu_works, refused).ok()) (void)refused.run();
}

void load::did_without(const path::job& carried, const status& why) {
  by_.runtime_.stats().count_fallback(carried.path->kind(), why.message());
}

// --- shipments

shipment::shipment(collector& by, sender& from) noexcept
    : by_(by),
      from_(from),
      ranges_per_load_(
          std::clamp(from.item_count() / (std::size_t{4} * by.runtime_.lane_count()), least_ranges_per_load, most_ranges_per_load)) {
  by.direct(queues_);
}

void shipment::add(admission& item, std::uint32_t index) {
  // Several threads fill a slab, so one larger copy is better than several copies.
  const bool shared = item.place().on_device() && !item.what().is_write;
  const auto most = shared ? std::min(from_.item_count(), most_ranges_per_load) : ranges_per_load_;
  load::take_for(newest_, item, most, by_, this).add(item, index);
}

void shipment::flush() noexcept {
  // If the lookup runs out of memory, each range is looked up when it is read. Nothing else allocates.
  (void)or_no_memory([this]() -> status {
    ask_residency();
    return {};
  });
  staging::work* first = nullptr;
  staging::work* const last = newest_ == nullptr ? nullptr : &newest_->job;
  std::size_t count = 0;
  for (const auto now = now_ns(); newest_ != nullptr; newest_ = newest_->older, ++count) {
    newest_->job.started_ns = now;
    newest_->job.next_work = std::exchange(first, &newest_->job);
  }
  if (count > 0) (void)by_.lanes_.push(queues_.cpu_works, *first, *last, count);  // the threads exist
}

bool shipment::help() { return !by_.is_background() && (by_.lanes_.help(queues_.cpu_works) || by_.lanes_.help(queues_.shared_works)); }

// Looks up a sample of a file's many ranges. If the sample agrees, the result is used for all of them; exceptions are rare and still read
// correctly. Otherwise each range is looked up when it is read. The same applies to ranges that must not enter the page cache.
void shipment::ask_residency() {
  struct tally {
    std::size_t count = 0;
    std::size_t met = 0;
    std::size_t asked = 0;
    std::size_t resident = 0;
    std::size_t absent = 0;
    [[nodiscard]] path::residency of_all() const {
      if (asked == 0) return path::residency::unknown;
      if (resident == asked) return path::residency::resident;
      return absent == asked ? path::residency::absent : path::residency::unknown;
    }
  };
  std::map<source::source*, tally> files;
  const auto each_range = [this](auto ask) {
    for (auto* each = newest_; each != nullptr; each = each->older) {
      if (each->job.is_write || !each->job.place.on_device()) continue;
      for (auto& range : each->job.ranges) {
        if (range.cache == cache_use::automatic) ask(range);
      }
    }
  };
  each_range([&](const path::gather_range& range) { ++files[range.file].count; });
  each_range([&](const path::gather_range& range) {
    auto& of = files[range.file];
    if (of.met++ % (of.count / asked_ranges + 1) != 0 || of.count < 2 * asked_ranges) return;
    if (!range.file->cached_problem().ok() || !range.file->direct_problem().ok()) return;
    const auto bytes = range.file->resident_bytes(range.offset, range.length);
    ++of.asked;
    of.resident += bytes && *bytes >= range.length ? 1 : 0;
    of.absent += bytes && *bytes == 0 ? 1 : 0;
  });
  each_range([&](path::gather_range& range) { range.cached = files[range.file].of_all(); });
}

// --- single requests

void small_request::end(io_result outcome) noexcept {
  admitted_.count(outcome);
  admitted_.let_go();
  complete(std::move(outcome));
}

void small_request::end_queued() { by_.withdraw(*this); }

void collector::direct(path::job_queues& jobs) const noexcept {
  jobs.background = is_background();
  jobs.lanes = &lanes_;
  jobs.disk = &disk_;
}

// Applies a change under the lock, and calls a lane if one is needed.
template <class Change>
void collector::with_lock(Change change) noexcept {
  {
    const std::lock_guard guard(lock_);
    change();
    if (called_ || waiting_ == 0 || under_way_ >= most_under_way_) return;
    called_ = true;
  }
  (void)lanes_.push(list_, *this);
}

void collector::add(small_request& added) noexcept {
  const timed_ref here(added);
  with_lock([&] {
    assert(!added.waits_ && added.load_ == nullptr);
    added.waits_ = true;
    added.next_ = nullptr;
    added.previous_ = tail_;
    (tail_ == nullptr ? head_ : tail_->next_) = &added;
    tail_ = &added;
    ++waiting_;
  });
  if (!added.stop_reason().ok()) withdraw(added);  // a thread that stopped it may have looked for it before it was added
}

void collector::unlink(small_request& gone) noexcept {
  assert(gone.waits_ && waiting_ > 0);
  (gone.previous_ == nullptr ? head_ : gone.previous_->next_) = gone.next_;
  (gone.next_ == nullptr ? tail_ : gone.next_->previous_) = gone.previous_;
  gone.waits_ = false;
  --waiting_;
}

void collector::withdraw(small_request& stopped) {
  std::unique_lock guard(lock_);
  if (stopped.waits_) {
    unlink(stopped);
    guard.unlock();
    stopped.end({0, stopped.stop_reason()});
  } else if (auto* with = stopped.load_; with != nullptr && lanes_.withdraw(with->job.queues->cpu_works) != nullptr) {
    guard.unlock();
    with->finished(with->job, 0, with->stopped());  // the others run again
  }
}

bool collector::run() {
  auto* newest = take();
  while (newest != nullptr) {
    auto& job = std::exchange(newest, newest->older)->job;
    job.started_ns = now_ns();
    if (newest == nullptr || !lanes_.push(job.queues->cpu_works, job).ok()) (void)job.run();
  }
  return true;
}

// Returns the load for a lane to transfer: its share of the waiting requests, assuming that each load that may still start takes equally
// many. Until the requests are sorted, they count as one load in flight; then each load counts. Requests that cannot be added to a load
// fail.
load* collector::take() {
  small_request* first = nullptr;
  std::size_t count = 0;
  with_lock([&] {
    called_ = false;
    if (++under_way_ > most_under_way_) return;
    const std::size_t free = most_under_way_ - under_way_ + 1;
    const std::size_t share = std::min((waiting_ + free - 1) / free, most_ranges_per_load);
    std::uint64_t room = 0;
    for (first = head_; head_ != nullptr && count < share; ++count, head_ = head_->next_) {
      room += room_of(head_->admitted_.what());
      if (room > staging::large_slab_bytes) break;
      head_->waits_ = false;
    }
    (head_ == nullptr ? tail_ : head_->previous_) = nullptr;
    waiting_ -= count;
  });
  load* newest = nullptr;
  seen_allocation seen;
  for (; count > 0; --count) {
    auto& each = *std::exchange(first, first->next_);
    auto problem = or_no_memory([&]() -> status {
      if (auto nowhere = each.admitted_.locate(&seen); !nowhere.ok()) return nowhere;
      auto& found = load::take_for(newest, each.admitted_, count, *this, nullptr);
      found.add(each.admitted_, found.singles.size());
      found.singles.push_back(&each);
      return {};
    });
    if (!problem.ok()) each.end({0, std::move(problem)});
  }
  with_lock([&] {
    --under_way_;
    for (auto* each = newest; each != nullptr; each = each->older) {
      ++under_way_;
      for (auto* single : each->singles) single->load_ = each;
    }
  });
  return newest;
}

void collector::arrived(const load& ended) noexcept {
  with_lock([&] {
    assert(under_way_ > 0);
    for (auto* single : ended.singles) single->load_ = nullptr;
    --under_way_;
  });
}

}  // namespace penstock::core
