#include "staging/feeder.hpp"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {

namespace {

using namespace std::chrono_literals;

// The watcher pauses between two polls: briefly while copies complete, because threads wait for them; longer if it finds nothing, because
// then another thread pumps or the link is far behind.
constexpr std::chrono::microseconds shortest_pause = 40us;
constexpr std::chrono::microseconds longest_pause = 640us;

}  // namespace

feeder::~feeder() { assert(outstanding_.load() == 0); }

void feeder::submit(copy_task& task) {
  outstanding_.fetch_add(1);
  const std::lock_guard guard(inbox_lock_);
  inbox_.push_back(task);
}

bool feeder::pump() {
  // Tests before it sets, because many threads wait here, and setting would take the cache line away from the thread that pumps.
  if (!outstanding() || pumping_.test(std::memory_order_relaxed) || pumping_.test_and_set(std::memory_order_acquire)) return false;
  take_inbox();
  const bool issued = each_lane([this](lane& each) { return issue_waiting(each); });
  const bool collected = each_lane([this](lane& each) { return collect(each); }) | look_at_awaited();
  auto done = std::move(finished_);
  pumping_.clear(std::memory_order_release);
  // Outside the lock, because done may submit again and frees memory.
  while (copy_task* task = done.pop_front()) {
    task->done(*task, std::move(task->outcome));
    outstanding_.fetch_sub(1);
  }
  return issued || collected;
}

void feeder::take_inbox() {
  copy_task_list arrived;
  {
    const std::lock_guard guard(inbox_lock_);
    arrived = std::move(inbox_);
  }
  while (copy_task* task = arrived.pop_front()) (task->awaited != nullptr ? awaiting_ : lane_for(*task).waiting).push_back(*task);
}

feeder::lane& feeder::lane_for(const copy_task& task) {
  if (task.between_devices) return between_devices_;
  if (!task.to_device) return to_host_;
  return task.prompt ? promptly_to_device_ : to_device_;
}

bool feeder::lane::has_room() const noexcept {
  const auto under_way = head - tail;
  return under_way < 2 || (under_way < tasks.size() && bytes < most_bytes);
}

void feeder::lane::note_issued(copy_task& task) noexcept {
  constexpr std::uint64_t bytes_of_turn = std::uint64_t{4} << 20;
  tasks[head % tasks.size()] = &task;
  ++head;
  bytes.store(bytes.load(std::memory_order_relaxed) + task.bytes, std::memory_order_relaxed);
  turn_bytes += task.bytes;
  if (turn_bytes < bytes_of_turn) return;
  turn = (turn + 1) % turns;
  turn_bytes = 0;
}

template <class Function>
bool feeder::each_lane(Function function) {
  return function(promptly_to_device_) | function(to_device_) | function(to_host_) | function(between_devices_);
}

bool feeder::issue_waiting(lane& target) {
  bool progressed = false;
  while (!target.waiting.empty() && target.has_room()) {
    copy_task& task = *target.waiting.pop_front();
    if (auto problem = or_no_memory([&] { return issue(target, task); }); !problem.ok()) finish(task, std::move(problem));
    progressed = true;
  }
  return progressed;
}

status feeder::prepare(lane& target) {
  for (std::size_t i = 0; i < target.turns; ++i) {
    if (target.streams[i]) continue;
    auto made = device::owned_stream::make(session_);
    if (!made) return made.error();
    target.streams[i] = *std::move(made);
  }
  for (auto& event : target.events) {
    if (event) continue;
    auto made = device::owned_event::make(session_);
    if (!made) return made.error();
    event = *std::move(made);
  }
  target.ready = true;
  return {};
}

status feeder::issue(lane& target, copy_task& task) {
  if (!target.ready) {
    if (auto problem = prepare(target); !problem.ok()) return problem;
  }
  if (auto queued = queue(target, task); !queued.ok()) return queued;
  const auto on = task.packed != nullptr ? unpacker_.stream() : target.next_stream();
  // Writing the flag blocks a stream for some microseconds, so it is omitted between consecutive copies.
  if (task.flag != nullptr && target.head == target.tail)
    (void)or_no_memory([&] { return session_.write_value(on, task.flag, task.value); });
  const auto slot = target.head % target.tasks.size();
  if (auto recorded = or_no_memory([&] { return session_.record(target.events[slot].get(), on); }); !recorded.ok()) {
    // The copy may be in flight. Its memory must be unused before the caller is notified of the failure.
    (void)or_no_memory([&] { return session_.synchronize(on); });
    return recorded;
  }
  target.note_issued(task);
  return {};
}

status feeder::queue(lane& target, const copy_task& task) {
  const auto on = target.next_stream();
  if (task.packed != nullptr) return unpacker_.issue({{task.table, task.count}, task.packed, task.bytes, task.elsewhere}, on);
  if (task.count != 0) return session_.scatter(task.table, task.count, on);
  return session_.copy(task.target, task.source, task.bytes, on);
}

void feeder::prepare() noexcept {
  if (pumping_.test_and_set(std::memory_order_acquire)) return;
  (void)or_no_memory([this] { return to_device_.ready ? status() : prepare(to_device_); });
  (void)or_no_memory([this] { return unpacker_.prepare(true); });
  pumping_.clear(std::memory_order_release);
}

void feeder::trim() noexcept {
  if (pumping_.test_and_set(std::memory_order_acquire)) return;
  auto* const memory = outstanding() ? nullptr : unpacker_.take_memory();
  pumping_.clear(std::memory_order_release);
  // Outside the lock, because a GPU frees memory only when everything running on it has completed, and that may wait for copies being
  // queued now.
  if (memory != nullptr) (void)or_no_memory([&] { return session_.release(memory); });
}

void feeder::finish(copy_task& task, status outcome) noexcept {
  task.outcome = std::move(outcome);
  finished_.push_back(task);
}

bool feeder::collect(lane& target) {
  bool progressed = false;
  while (target.tail != target.head) {
    const auto slot = target.tail % target.tasks.size();
    auto reached = or_no_memory([&] { return session_.reached(target.events[slot].get()); });
    if (reached && !*reached) break;
    if (!reached) settle(target);
    target.bytes.store(target.bytes.load(std::memory_order_relaxed) - target.tasks[slot]->bytes, std::memory_order_relaxed);
    finish(*target.tasks[slot], reached.error());
    ++target.tail;
    progressed = true;
  }
  return progressed;
}

// Called after an error. Waits until nothing is in flight.
void feeder::settle(lane& target) noexcept {
  const auto settled = [this](device::stream on) {
    if (on != nullptr) (void)or_no_memory([&] { return session_.synchronize(on); });
  };
  for (const auto& each : target.streams) settled(each.get());
  settled(unpacker_.stream());
}

bool feeder::look_at_awaited() {
  bool progressed = false;
  auto seen = std::move(awaiting_);
  while (copy_task* task = seen.pop_front()) {
    auto reached = or_no_memory([&] { return session_.reached(task->awaited); });
    if (reached && !*reached) {
      awaiting_.push_back(*task);
    } else {
      finish(*task, reached.error());
      progressed = true;
    }
  }
  return progressed;
}

result<feeder*> feeders::of(device::session& session) {
  const auto find = [&]() -> feeder* {
    for (std::size_t i = 0, n = count_.load(std::memory_order_acquire); i < n; ++i) {
      if (feeder* candidate = list_[i].load(std::memory_order_relaxed); &candidate->session() == &session) return candidate;
    }
    return nullptr;
  };
  if (feeder* found = find()) return found;
  const std::lock_guard guard(lock_);
  if (feeder* found = find()) return found;
  const auto count = count_.load();
  if (count == capacity) return status(errc::out_of_memory, "more than 64 device contexts in one engine");
  owned_.push_back(std::make_unique<feeder>(session));
  list_[count].store(owned_.back().get(), std::memory_order_relaxed);
  count_.store(count + 1, std::memory_order_release);
  return owned_.back().get();
}

bool feeders::pump() {
  bool progressed = false;
  for (std::size_t i = 0, n = count_.load(std::memory_order_acquire); i < n; ++i)
    progressed |= list_[i].load(std::memory_order_relaxed)->pump();
  return progressed;
}

void feeders::trim() noexcept {
  for (std::size_t i = 0, n = count_.load(std::memory_order_acquire); i < n; ++i) list_[i].load(std::memory_order_relaxed)->trim();
}

bool feeders::outstanding() const noexcept {
  for (std::size_t i = 0, n = count_.load(std::memory_order_acquire); i < n; ++i) {
    if (list_[i].load(std::memory_order_relaxed)->outstanding()) return true;
  }
  return false;
}

// --- the watch

void feeders::watch::end() noexcept {
  if (of_ == nullptr) return;
  auto& all = *std::exchange(of_, nullptr);
  all.watched_.store(false);
  all.attend();
}

feeders::watch feeders::try_watch() noexcept {
  if (watched_.load(std::memory_order_relaxed) || watched_.exchange(true)) return {};
  return watch(this);
}

// Either this thread sees that the watcher is sleeping, or the watcher sees the new copies before it sleeps.
void feeders::attend() noexcept {
  if (!outstanding() || watched_.load() || !asleep_.load()) return;
  { const std::lock_guard guard(watcher_lock_); }
  alarm_.notify_one();
}

void feeders::rest() {
  if (!watcher_.joinable()) return;  // or the watcher destroys this as its last action
  stop(nullptr, nullptr);
  watcher_.join();
  const std::lock_guard guard(watcher_lock_);
  stopping_.store(false);
  started_.store(false);
}

status feeders::ready() {
  if (started_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(watcher_lock_);
  if (started_.load()) return {};
  try {
    watcher_ = std::thread(&feeders::look_after, this);
  } catch (const std::system_error& problem) {
    return no_worker(problem);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  started_.store(true, std::memory_order_release);
  return {};
}

// The watcher takes the lock again before its last action, which may destroy this object. Therefore the lock is held until the alarm has
// been raised.
void feeders::stop(void (*function)(void*), void* argument) {
  const std::lock_guard guard(watcher_lock_);
  last_deed_ = function;
  last_argument_ = argument;
  stopping_.store(true);
  alarm_.notify_one();
}

bool feeders::end_with(void (*function)(void*), void* argument) {
  if (!started_.load()) return false;
  stop(function, argument);
  return true;
}

void feeders::look_after() {
  become_worker("penstock-copies");
  auto pause = shortest_pause;
  while (!stopping_.load()) {
    const bool mine = outstanding() && !watched_.load();
    if (mine && pump()) {
      pause = shortest_pause;
    } else if (mine || pause < longest_pause) {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest_pause);
    } else {
      std::unique_lock guard(watcher_lock_);
      asleep_.store(true);
      alarm_.wait(guard, [this] { return stopping_.load() || (outstanding() && !watched_.load()); });
      asleep_.store(false);
      pause = shortest_pause;
    }
  }
  void (*deed)(void*) = nullptr;
  void* argument = nullptr;
  {
    const std::lock_guard guard(watcher_lock_);
    deed = last_deed_;
    argument = last_argument_;
    if (deed != nullptr) watcher_.detach();
  }
  if (deed != nullptr) deed(argument);
}

}  // namespace penstock::staging
