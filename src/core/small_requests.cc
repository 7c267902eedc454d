#include "core/small_requests.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::core {

void small_request::end(io_result outcome) noexcept {
  admitted_.count(outcome);
  admitted_.let_go();
  complete(std::move(outcome));
}

void small_request::end_queued() { home_.withdraw(*this); }

// Requests that travel together: same device context (or the host's memory), same direction. As a work it calls their callbacks.
class small_requests::group final : public path::job_owner, public staging::work {
 public:
  group(small_requests& home, const staging::place& place, bool is_write, std::size_t capacity) : home_(home) {
    queues_.lanes = &home.lanes_;
    queues_.disk = &home.disk_;
    prepare_gather(job_, *this, queues_, home.runtime_, place, is_write);
    job_.ranges.reserve(capacity);
    requests_.reserve(capacity);
  }

  [[nodiscard]] bool suits(const staging::place& place, bool is_write) const noexcept {
    return job_.place.via == place.via && job_.is_write == is_write;
  }
  void add(small_request& added) noexcept {
    const auto& what = added.admitted_.what();
    const auto index = static_cast<std::uint32_t>(requests_.size());
    job_.ranges.push_back(
        {&added.admitted_.file().view_if_open(), what.offset, what.length, what.memory, index, path::residency::unknown, 0, {}});
    requests_.push_back(&added);
  }
  path::job& ready_job() noexcept {
    job_.started_ns = now_ns();
    return job_;
  }
  [[nodiscard]] path::job_queues& queues() noexcept { return queues_; }
  [[nodiscard]] const std::vector<small_request*>& requests() const noexcept { return requests_; }
  // Ends those that were stopped, before the job has begun; the others go again.
  void end_stopped() { finished(job_, 0, stopped()); }

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override { run_again(refused, why, home_.runtime_); }
  // One that is stopped need not wait, as they all do, for a slab.
  [[nodiscard]] status stopped() const override {
    for (const auto* each : requests_) {
      if (auto why = each->stop_reason(); !why.ok()) return why;
    }
    return {};
  }
  [[nodiscard]] status range_stopped(const path::gather_range& range) const override { return requests_[range.index]->stop_reason(); }

  bool run() override;

  group* next = nullptr;  // of those that one lane has sorted

 private:
  ~group() override = default;

  small_requests& home_;
  path::job_queues queues_;
  path::job job_;
  std::vector<small_request*> requests_;
  small_request* told_ = nullptr;  // have ended, and have a callback; by next_
};

void small_requests::group::finished(path::job& ended, std::uint64_t bytes, status error) {
  auto& with = home_.runtime_;
  const auto alive = with.shared_from_this();  // the last request may be the last to keep it
  with.stats().count_piece(ended.path->kind(), bytes, {ended.started_ns, now_ns()}, !error.ok());
  home_.group_ended(*this);
  // An error of the whole job comes before anything has moved. Where some are stopped it may concern them alone: the others go again.
  const bool some_stopped = !error.ok() && !stopped().ok();
  {
    outcomes told(ended, with);
    for (auto& range : ended.ranges) {
      auto& each = requests_[range.index];
      if (some_stopped) error = each->stop_reason();
      if (some_stopped && error.ok()) {
        home_.add(*std::exchange(each, nullptr));
        continue;
      }
      auto outcome = told.of(range, error, each->admitted_);
      range.moved = outcome.bytes_done;
      range.error = std::move(outcome.error);
    }
  }
  // Counted before anybody is told.
  small_request* last_told = nullptr;
  for (auto& range : ended.ranges) {
    if (requests_[range.index] == nullptr) continue;
    auto& each = *requests_[range.index];
    each.admitted_.let_go();
    const bool calls_back = each.has_callback();  // once it is settled, and has none, it may be gone
    each.settle({range.moved, std::move(range.error)});
    if (calls_back) {
      each.next_ = nullptr;
      (last_told == nullptr ? told_ : last_told->next_) = &each;
      last_told = &each;
    } else {
      each.release();
    }
  }
  if (told_ == nullptr) {
    delete this;
  } else {
    pending::run_soon(with, queues_.urgent_works, *this);
  }
}

bool small_requests::group::run() {
  while (told_ != nullptr) {
    auto& each = *std::exchange(told_, told_->next_);
    each.call_back();
    each.release();
  }
  delete this;
  return true;
}

void small_requests::add(small_request& added) noexcept {
  added.retain();
  bool first = false;
  {
    const std::lock_guard guard(lock_);
    added.waits_ = true;
    added.next_ = nullptr;
    added.previous_ = tail_;
    (tail_ == nullptr ? head_ : tail_->next_) = &added;
    tail_ = &added;
    ++waiting_;
    first = must_call();
  }
  if (first) call();
  if (!added.stop_reason().ok()) withdraw(added);  // who has stopped it may have come too early to find it here
  added.release();
}

void small_requests::unlink(small_request& gone) noexcept {
  (gone.previous_ == nullptr ? head_ : gone.previous_->next_) = gone.next_;
  (gone.next_ == nullptr ? tail_ : gone.next_->previous_) = gone.previous_;
  gone.next_ = gone.previous_ = nullptr;
  gone.waits_ = false;
  --waiting_;
}

void small_requests::withdraw(small_request& stopped) {
  group* queued = nullptr;
  bool waited = false;
  {
    const std::lock_guard guard(lock_);
    waited = stopped.waits_;
    if (waited) {
      unlink(stopped);
    } else if (auto* with = static_cast<group*>(stopped.group_); with != nullptr && lanes_.withdraw(with->queues().cpu_works) != nullptr) {
      queued = with;
    }
  }
  if (waited) stopped.end({0, stopped.stop_reason()});
  if (queued != nullptr) queued->end_stopped();
}

// With the lock. True: the caller lets go of it and calls a lane.
bool small_requests::must_call() noexcept {
  if (called_ || waiting_ == 0 || under_way_ >= most_under_way_) return false;
  return called_ = true;
}

void small_requests::call() noexcept { (void)lanes_.push(list_, *this); }

bool small_requests::run() {
  const auto taken = take();
  if (taken.first == nullptr) return true;
  auto* groups = sort(taken);
  while (groups != nullptr) {
    auto& each = *std::exchange(groups, groups->next);
    if (groups != nullptr) {
      (void)lanes_.push(each.queues().cpu_works, each.ready_job());
    } else {
      (void)each.ready_job().run();
    }
  }
  return true;
}

// What a lane carries: its share of what waits, if each group that may still start were to take as much. Counts as one group under way.
small_requests::chain small_requests::take() {
  chain taken;
  bool more = false;
  {
    const std::lock_guard guard(lock_);
    called_ = false;
    if (waiting_ == 0 || under_way_ >= most_under_way_) return {};
    const std::size_t free = most_under_way_ - under_way_;
    const std::size_t share = std::min((waiting_ + free - 1) / free, most_ranges_per_job);
    std::uint64_t room = 0;
    small_request* last = nullptr;
    while (head_ != nullptr && taken.count < share) {
      room += room_of(head_->admitted_.what().offset, head_->admitted_.what().length);
      if (room > staging::large_slab_bytes) break;
      auto& each = *head_;
      unlink(each);
      (last == nullptr ? taken.first : last->next_) = &each;
      last = &each;
      ++taken.count;
    }
    ++under_way_;
    more = must_call();
  }
  if (more) call();
  return taken;
}

// Into groups, each of which counts as under way; what cannot travel ends.
small_requests::group* small_requests::sort(chain taken) {
  group* groups = nullptr;
  seen_allocation seen;
  for (; taken.first != nullptr; --taken.count) {
    auto& each = *std::exchange(taken.first, taken.first->next_);
    each.next_ = nullptr;
    const auto problem = or_no_memory([&] { return join(each, groups, taken.count, seen); });
    if (!problem.ok()) each.end({0, problem});
  }
  bool more = false;
  {
    const std::lock_guard guard(lock_);
    --under_way_;
    for (auto* each = groups; each != nullptr; each = each->next) {
      ++under_way_;
      for (auto* request : each->requests()) request->group_ = each;
    }
    more = must_call();
  }
  if (more) call();
  return groups;
}

// To the group that suits it, or a new one. An error: to none.
status small_requests::join(small_request& each, group*& groups, std::size_t still_to_come, seen_allocation& seen) {
  if (auto problem = each.admitted_.locate(&seen); !problem.ok()) return problem;
  (void)each.admitted_.file().view();  // both descriptors
  const auto& place = each.admitted_.place();
  const bool is_write = each.admitted_.what().is_write;
  auto* found = groups;
  while (found != nullptr && !found->suits(place, is_write)) found = found->next;
  if (found == nullptr) {
    found = new group(*this, place, is_write, still_to_come);
    found->next = groups;
    groups = found;
  }
  found->add(each);
  return {};
}

void small_requests::group_ended(group& ended) {
  bool more = false;
  {
    const std::lock_guard guard(lock_);
    for (auto* request : ended.requests()) request->group_ = nullptr;
    --under_way_;
    more = must_call();
  }
  if (more) call();
}

}  // namespace penstock::core
