#include "cufile/batch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <utility>

#include "cufile/errors.hpp"

namespace penstock::cufile {

namespace {

CUfileIOEvents_t failed(void* cookie, int error) noexcept {
  return {cookie, CUFILE_FAILED, static_cast<std::size_t>(-static_cast<ssize_t>(error))};
}

CUfileIOEvents_t event_of(void* cookie, const io_result& outcome) noexcept {
  if (outcome.ok()) return {cookie, CUFILE_COMPLETE, outcome.bytes_done};
  if (outcome.error.code() == errc::cancelled) return {cookie, CUFILE_CANCELED, outcome.bytes_done};
  return failed(cookie, errno_of(outcome.error));
}

}  // namespace

// The entries of one submit call. The engine keeps this object until the last entry has completed.
struct batch_state::submission {
  struct entry {
    void* cookie = nullptr;
    counters::subject about;
    std::atomic<bool> ended{false};
  };

  submission(std::shared_ptr<inner> into, std::size_t count) : target(std::move(into)), entries(count) {}

  void ended(std::size_t index, const io_result& outcome) noexcept {
    entry& one = entries[index];
    if (one.ended.exchange(true)) return;
    target->stats.count_entry(one.about, outcome, began);
    if (!outcome.ok() && outcome.error.code() != errc::cancelled && target->lines.wants(log_level::error)) {
      target->lines.write(log_level::error, "a batch {}: {}", one.about.is_write ? "write" : "read", outcome.error.message());
    }
    target->add(event_of(one.cookie, outcome));
  }
  // Called if the engine threw: entries that have not completed will not run.
  void give_up() noexcept {
    for (entry& one : entries) {
      if (!one.ended.exchange(true)) target->add(failed(one.cookie, ENOMEM));
    }
  }

  const std::shared_ptr<inner> target;
  const clock::time_point began = clock::now();
  std::vector<entry> entries;
};

void batch_state::inner::add(const CUfileIOEvents_t& event) noexcept {
  bool wake = false;
  {
    const std::lock_guard guard(lock);
    events.push_back(event);
    wake = events.size() >= enough;
    if (wake) enough = nobody;
  }
  if (wake) changed.notify_all();
}

batch_state::~batch_state() {
  stop();
  for (auto& each : running_) (void)each->wait();
}

bool batch_state::submit(const engine& owner, std::span<const CUfileIOParams_t> entries, std::span<const io_request> requests,
                         std::span<const int> refused, const io_options& options, std::span<const counters::subject> abouts) {
  // Everything that may throw is done before room is reserved.
  std::vector<io_request> good;
  good.reserve(requests.size());
  std::ranges::copy_if(requests, std::back_inserter(good), [](const io_request& each) { return each.target != nullptr; });
  const auto made = std::make_shared<submission>(inner_, good.size());
  item_callback each = [made](std::size_t index, const io_result& outcome) { made->ended(index, outcome); };
  std::list<std::shared_ptr<batch>> started{std::make_shared<batch>()};
  {
    const std::lock_guard guard(inner_->lock);
    if (entries.size() > capacity_ - inner_->outstanding) return false;
    inner_->outstanding += entries.size();
  }
  for (std::size_t i = 0, next = 0; i < entries.size(); ++i) {
    if (requests[i].target == nullptr) {
      inner_->add(failed(entries[i].cookie, refused[i]));
    } else {
      made->entries[next].cookie = entries[i].cookie;
      made->entries[next++].about = abouts.empty() ? counters::subject{.is_write = requests[i].is_write} : abouts[i];
    }
  }
  if (good.empty()) return true;
  try {
    *started.front() = owner.submit(good, options, {}, std::move(each));
  } catch (const std::exception&) {
    made->give_up();
    return true;
  }
  const std::lock_guard guard(running_lock_);
  if (stopped_) started.front()->cancel();
  running_.remove_if([](const std::shared_ptr<batch>& old) { return old->done(); });
  running_.splice(running_.end(), started);
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
    wait(lock, wanted, until);
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(out.size(), events.size()));
  std::copy_n(events.begin(), count, out.begin());
  events.erase(events.begin(), events.begin() + count);
  inner_->outstanding -= static_cast<std::size_t>(count);
  // Other threads may be waiting for events that will no longer arrive.
  const bool wake = count > 0 && std::exchange(inner_->enough, inner::nobody) != inner::nobody;
  lock.unlock();
  if (wake) inner_->changed.notify_all();
  return static_cast<std::size_t>(count);
}

// Returns when events may have arrived. If the caller wants every event and sets no timeout, it waits inside the engine, where its thread
// may help. Each running submission produces events that the caller wants, and all of them have arrived when the submission completes.
void batch_state::wait(std::unique_lock<std::mutex>& lock, std::size_t wanted, std::optional<clock::time_point> until) {
  if (!until && wanted == inner_->outstanding) {
    lock.unlock();
    const auto running = first_running();
    if (running != nullptr) (void)running->wait();
    lock.lock();
    // If none is running, another thread has taken the events, or has reserved room for a submission that it is about to start.
    wanted = std::min(wanted, inner_->outstanding);
    if (running != nullptr || inner_->events.size() >= wanted) return;
  }
  inner_->enough = std::min(inner_->enough, wanted);
  if (until) {
    inner_->changed.wait_until(lock, *until);
  } else {
    inner_->changed.wait(lock);
  }
}

std::shared_ptr<batch> batch_state::first_running() {
  const std::lock_guard guard(running_lock_);
  const auto found = std::ranges::find_if(running_, [](const auto& each) { return !each->done(); });
  return found == running_.end() ? nullptr : *found;
}

void batch_state::cancel() noexcept {
  const std::lock_guard running_guard(running_lock_);
  for (auto& each : running_) each->cancel();
  for (auto& each : running_) (void)each->wait();
  running_.clear();
  {
    const std::lock_guard guard(inner_->lock);
    inner_->outstanding -= inner_->events.size();
    inner_->events.clear();
    inner_->enough = inner::nobody;
  }
  inner_->changed.notify_all();
}

void batch_state::stop() noexcept {
  const std::lock_guard guard(running_lock_);
  stopped_ = true;
  for (auto& each : running_) each->cancel();
}

}  // namespace penstock::cufile
