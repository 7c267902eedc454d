#include "core/rate_limit.hpp"

#include <algorithm>
#include <cmath>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

// While both kinds wait, one in this many admitted jobs is a background job.
constexpr unsigned background_turns = 8;
// The timer fires slightly late, while the bucket fills, so that it releases several small jobs at a time.
constexpr std::chrono::nanoseconds timer_delay = std::chrono::milliseconds(1);

std::int64_t clock_now_ns() noexcept { return std::chrono::nanoseconds(deadline_clock::now().time_since_epoch()).count(); }

}  // namespace

std::int64_t token_bucket::cost_ns(std::uint64_t bytes) const noexcept {
  constexpr double most_ns = 1e17;  // three years
  return static_cast<std::int64_t>(std::ceil(std::min(static_cast<double>(bytes) / bytes_per_second_ * 1e9, most_ns)));
}

void token_bucket::take(std::uint64_t bytes, std::int64_t now_ns) noexcept {
  constexpr std::int64_t most_ns = std::int64_t{1} << 62;
  paid_ns_ = std::min(std::max(paid_ns_, now_ns - burst.count()) + cost_ns(bytes), most_ns);
}

bool rate_limit::try_pass(std::uint64_t bytes) noexcept {
  const auto now = clock_now_ns();
  const std::lock_guard guard(lock_);
  if (normal_.size() > 0 || background_.size() > 0 || !bucket_.is_open(now)) return false;
  bucket_.take(bytes, now);
  return true;
}

void rate_limit::give_back(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  bucket_.give_back(bytes);
}

void rate_limit::charge(std::uint64_t bytes) noexcept {
  const auto now = clock_now_ns();
  const std::lock_guard guard(lock_);
  bucket_.take(bytes, now);
}

void rate_limit::hold(staging::work_list& list, const staging::work_chain& jobs, bool background) noexcept {
  if (jobs.count == 0) return;
  const auto now = clock_now_ns();
  for (auto* each = jobs.first; each != nullptr; each = each->next_work) static_cast<path::job*>(each)->started_ns = now;
  {
    const std::lock_guard guard(lock_);
    (background ? background_ : normal_).push(list, *jobs.first, *jobs.last, jobs.count);
  }
  let_pass(now);
}

bool rate_limit::help(staging::work_list& list, bool background) {
  staging::work* item = nullptr;
  {
    const std::lock_guard guard(lock_);
    item = (background ? background_ : normal_).take_from(list);
  }
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

// Jobs that were held back by this same call have not waited and are not counted. A notified owner may release the file or engine to which
// this limit belongs.
void rate_limit::let_pass(std::int64_t just_held_ns) noexcept {
  const timed_ref here(*this);
  for (;;) {
    const auto now = clock_now_ns();
    path::job* next = nullptr;
    {
      const std::lock_guard guard(lock_);
      next = next_to_pass(now);
    }
    if (next == nullptr) return;
    if (next->started_ns != just_held_ns) counts_.count_held(next->length, {next->started_ns, now});
    next->owner->passed(*next);
  }
}

// Call with the lock held.
path::job* rate_limit::next_to_pass(std::int64_t now_ns) noexcept {
  const bool any_normal = normal_.size() > 0;
  const bool any_background = background_.size() > 0;
  if (!any_normal && !any_background) return nullptr;
  if (!bucket_.is_open(now_ns) && watch()) return nullptr;
  const bool takes_background = any_background && (!any_normal || ++turn_ % background_turns == 0);
  auto* const taken = static_cast<path::job*>((takes_background ? background_ : normal_).take());
  bucket_.take(taken->length, now_ns);
  return taken;
}

// Call with the lock held. Returns false if there is no timer.
bool rate_limit::watch() noexcept {
  if (watched_ || ended_) return watched_;
  set_deadline(deadline_clock::time_point(std::chrono::nanoseconds(bucket_.open_ns())) + timer_delay);
  watched_ = or_no_memory([&] { return by_.watch(*this); }).ok();
  return watched_;
}

void rate_limit::end_queued() {
  {
    const std::lock_guard guard(lock_);
    watched_ = false;
  }
  let_pass(0);
}

void rate_limit::end() noexcept {
  bool watched = false;
  {
    const std::lock_guard guard(lock_);
    ended_ = true;
    watched = watched_;
  }
  if (watched) by_.forget(*this);
  release();
}

void end_of_limit::operator()(rate_limit* limit) const noexcept { limit->end(); }

}  // namespace penstock::core
