#include "core/small_requests.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/engine_core.hpp"
#include "core/gather.hpp"

namespace penstock::core {

small_request::small_request(std::shared_ptr<engine_core> engine, std::shared_ptr<file_core> file, const transfer& what)
    : pending(std::move(engine)), file_(std::move(file)), what_(what) {}

status small_request::begin() {
  auto problem = file_->begin(what_.is_write);
  begun_ = problem.ok();
  return problem;
}

void small_request::end(io_result outcome) {
  outcome.error = in_context(outcome.error, what_, *file_);
  engine().stats().count_request(what_.is_write, outcome);
  if (begun_) file_->end();
  complete(std::move(outcome));
}

// Requests that travel together: same device context (or the host's memory), same direction. As a work it calls their callbacks.
class small_requests::group final : public path::job_owner, public staging::work {
 public:
  group(small_requests& home, const path::memory_view& place, bool is_write) : home_(home) {
    prepare_gather(job_, *this, home.engine_, place, is_write);
  }

  [[nodiscard]] bool suits(const path::memory_view& place, bool is_write) const noexcept {
    return job_.memory_place.session == place.session && job_.is_write == is_write;
  }
  void add(small_request& added) {
    const auto& what = added.what_;
    const auto index = static_cast<std::uint32_t>(requests_.size());
    job_.ranges.push_back({&added.file_->view(), what.offset, what.length, what.memory, index, path::residency::unknown, 0, {}});
    requests_.push_back(&added);
  }
  path::job& ready_job() {
    job_.started_ns = engine_core::now_ns();
    return job_;
  }

  void finished(path::job& ended, std::uint64_t bytes, status error) override;
  void hand_over(path::job& refused, status why) override { run_again(refused, why, home_.engine_); }
  // One that is stopped need not wait, as they all do, for a slab.
  [[nodiscard]] status stopped() const override {
    for (const auto* each : requests_) {
      if (auto why = each->stop_reason(); !why.ok()) return why;
    }
    return {};
  }
  [[nodiscard]] status range_stopped(const path::gather_range& range) const override { return requests_[range.index]->stop_reason(); }

  bool run() override;

 private:
  ~group() override = default;

  small_requests& home_;
  path::job job_;
  std::vector<small_request*> requests_;
  std::vector<small_request*> told_;  // have ended, and have a callback
};

void small_requests::group::finished(path::job& ended, std::uint64_t bytes, status error) {
  auto& engine = home_.engine_;
  const auto alive = engine.shared_from_this();  // the last request may be the last to keep it
  engine.stats().count_piece(ended.path->kind(), bytes, {ended.started_ns, engine_core::now_ns()}, !error.ok());
  home_.group_ended();
  // An error of the whole job comes before anything has moved. Where some are stopped it may concern them alone: the others go again.
  const bool some_stopped = !error.ok() && !stopped().ok();
  for (auto& range : ended.ranges) {
    auto& each = *requests_[range.index];
    if (some_stopped) error = each.stop_reason();
    if (some_stopped && error.ok()) {
      home_.add(each);
      continue;
    }
    auto outcome = outcome_of(range, ended, error, engine, *each.file_);
    each.file_->end();
    each.settle(std::move(outcome));
    if (each.has_callback()) {
      told_.push_back(&each);
    } else {
      each.release();
    }
  }
  if (told_.empty()) {
    delete this;
  } else {
    pending::run_soon(engine, urgent_works, *this);
  }
}

bool small_requests::group::run() {
  for (auto* each : told_) {
    each->call_back();
    each->release();
  }
  delete this;
  return true;
}

void small_requests::add(small_request& added) {
  bool first = false;
  {
    const std::lock_guard guard(lock_);
    (inbox_tail_ == nullptr ? inbox_head_ : inbox_tail_->next_) = &added;
    inbox_tail_ = &added;
    ++waiting_;
    first = must_call();
  }
  if (first) call();
}

// With the lock. True: the caller lets go of it and calls a lane.
bool small_requests::must_call() {
  if (called_ || waiting_ == 0 || under_way_ >= most_under_way_) return false;
  return called_ = true;
}

void small_requests::call() { (void)engine_.lanes().push(list_, *this); }

bool small_requests::run() {
  auto* const taken = take();
  if (taken == nullptr) return true;
  const auto groups = sort(taken);
  if (groups.empty()) {
    group_ended();
    return true;
  }
  {
    const std::lock_guard guard(lock_);
    under_way_ += groups.size() - 1;
  }
  for (std::size_t i = 1; i < groups.size(); ++i) (void)engine_.lanes().push(groups[i]->cpu_works, groups[i]->ready_job());
  (void)groups[0]->ready_job().run();
  return true;
}

// What a lane carries: its share of what waits, if each group that may still start were to take as much. Counts as one group under way.
small_request* small_requests::take() {
  std::size_t share = 0;
  {
    const std::lock_guard guard(lock_);
    if (waiting_ == 0 || under_way_ >= most_under_way_) {
      called_ = false;
      return nullptr;
    }
    const std::size_t free = most_under_way_ - under_way_;
    share = std::min((waiting_ + free - 1) / free, most_ranges_per_job);
    ++under_way_;
    if (head_ == nullptr) {
      head_ = std::exchange(inbox_head_, nullptr);
      inbox_tail_ = nullptr;
    }
  }
  auto* const first = head_;
  std::size_t count = 0;
  std::uint64_t room = 0;
  small_request* last = nullptr;
  for (; head_ != nullptr && count < share; head_ = head_->next_, ++count) {
    room += room_of(head_->what_.offset, head_->what_.length);
    if (room > staging::large_slab_bytes) break;
    last = head_;
  }
  last->next_ = nullptr;
  bool more = false;
  {
    const std::lock_guard guard(lock_);
    waiting_ -= count;
    called_ = false;
    more = must_call();
  }
  if (more) call();
  return first;
}

std::vector<small_requests::group*> small_requests::sort(small_request* taken) {
  std::vector<group*> groups;
  seen_allocation seen;
  while (taken != nullptr) {
    auto& each = *std::exchange(taken, taken->next_);
    each.next_ = nullptr;
    const auto& what = each.what_;
    const auto place = engine_.place_of(what.memory, what.length, &seen);
    if (!place) {
      each.end({0, place.error()});
      continue;
    }
    auto known = std::find_if(groups.begin(), groups.end(), [&](const auto* one) { return one->suits(*place, what.is_write); });
    if (known == groups.end()) known = groups.insert(known, new group(*this, *place, what.is_write));
    (*known)->add(each);
  }
  return groups;
}

void small_requests::group_ended() {
  bool more = false;
  {
    const std::lock_guard guard(lock_);
    --under_way_;
    more = must_call();
  }
  if (more) call();
}

}  // namespace penstock::core
