#include "cufile/batch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "cufile/errors.hpp"

namespace penstock::cufile {

namespace {

CUfileIOEvents_t event_of(void* cookie, const io_result& outcome) {
  if (outcome.ok()) return {cookie, CUFILE_COMPLETE, outcome.bytes_done};
  if (outcome.error.code() == errc::cancelled) return {cookie, CUFILE_CANCELED, outcome.bytes_done};
  return {cookie, CUFILE_FAILED, static_cast<std::size_t>(-static_cast<ssize_t>(errno_of(outcome.error)))};
}

}  // namespace

void batch_state::inner::ended(void* cookie, bool is_write, const io_result& outcome, clock::time_point submitted) {
  stats.count_entry(is_write, outcome, submitted);
  {
    const std::lock_guard guard(lock);
    events.push_back(event_of(cookie, outcome));
  }
  changed.notify_all();
}

batch_state::~batch_state() {
  cancel();
  for (auto& each : running()) (void)each->wait();
}

bool batch_state::submit(const engine& owner, std::span<const CUfileIOParams_t> entries, std::span<const io_request> requests,
                         std::span<const int> refused, const io_options& options) {
  const auto submitted = clock::now();
  {
    const std::lock_guard guard(inner_->lock);
    if (entries.size() > capacity_ - std::min<std::size_t>(capacity_, inner_->outstanding)) return false;
    inner_->outstanding += entries.size();
  }
  auto cookies = std::make_shared<std::vector<std::pair<void*, bool>>>();
  std::vector<io_request> good;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (requests[i].target == nullptr) {
      const std::lock_guard guard(inner_->lock);
      inner_->events.push_back({entries[i].cookie, CUFILE_FAILED, static_cast<std::size_t>(-static_cast<ssize_t>(refused[i]))});
    } else {
      cookies->emplace_back(entries[i].cookie, requests[i].is_write);
      good.push_back(requests[i]);
    }
  }
  inner_->changed.notify_all();
  if (good.empty()) return true;
  auto each = [kept = inner_, cookies, submitted](std::size_t index, const io_result& outcome) {
    const auto [cookie, is_write] = (*cookies)[index];
    kept->ended(cookie, is_write, outcome, submitted);
  };
  auto made = std::make_shared<batch>(owner.submit(good, options, {}, std::move(each)));
  const std::lock_guard guard(submissions_lock_);
  std::erase_if(submissions_, [](const submission& old) { return old->done(); });
  submissions_.push_back(std::move(made));
  return true;
}

std::size_t batch_state::collect(std::size_t at_least, std::span<CUfileIOEvents_t> out, std::optional<clock::duration> timeout) {
  std::optional<clock::time_point> until;
  if (timeout) until = clock::now() + *timeout;
  std::unique_lock lock(inner_->lock);
  auto& events = inner_->events;
  for (;;) {
    const std::size_t wanted = std::min({at_least, inner_->outstanding, out.size()});
    if (events.size() >= wanted || (until && clock::now() >= *until)) break;
    wait_once(lock, wanted, until);
  }
  const std::size_t count = std::min(out.size(), events.size());
  std::copy_n(events.begin(), count, out.begin());
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count));
  inner_->outstanding -= count;
  lock.unlock();
  inner_->changed.notify_all();  // others may be waiting for events that cannot come any more
  return count;
}

// Who waits for everything waits inside the engine, which lets the caller's thread help; else until the next event.
void batch_state::wait_once(std::unique_lock<std::mutex>& lock, std::size_t wanted, std::optional<clock::time_point> until) {
  if (wanted == inner_->outstanding) {
    lock.unlock();
    const auto left = running();
    const bool any = !left.empty();
    if (any) (void)left.front()->wait_for(until ? *until - clock::now() : std::chrono::hours(1));
    lock.lock();
    if (any) return;
    // Between the last event of a submission and its end there is nothing to wait for in the engine.
    if (inner_->events.size() >= wanted) return;
  }
  if (until) {
    inner_->changed.wait_until(lock, *until);
  } else {
    inner_->changed.wait(lock);
  }
}

std::vector<batch_state::submission> batch_state::running() {
  const std::lock_guard guard(submissions_lock_);
  std::vector<submission> found;
  for (const auto& each : submissions_) {
    if (!each->done()) found.push_back(each);
  }
  return found;
}

void batch_state::cancel() {
  for (auto& each : running()) each->cancel();
}

}  // namespace penstock::cufile
