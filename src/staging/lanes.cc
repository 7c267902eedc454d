#include "staging/lanes.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdio>
#include <new>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {

using namespace std::chrono_literals;

namespace {

// With this many spinning lanes and a caller that helps, a 1 MiB call takes the least time (H200: 70 us; 78 us with two fewer lanes). More
// lanes would only use CPU time between two calls.
constexpr unsigned most_spinning = 9;
// After a work item that took this long, the 20 us to wake a thread do not matter, and spinning for the next item may use more CPU time
// than the work itself (copies of pinned pages: 0.0073 s/GB with spinning, 0.0029 without).
constexpr std::chrono::milliseconds long_work{4};
constexpr unsigned least_at_work = 4;
constexpr unsigned feeds_between = 32;  // feeds between two adjustments

// Returns a mask of the lanes with an index below count.
constexpr std::uint64_t below(unsigned count) { return count >= lanes::most_lanes ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1; }

}  // namespace

lanes::lanes(crew size, std::chrono::microseconds spin, feeders* copies, const char* name)
    : size_(size), spin_(spin), copies_(copies), name_(name), at_work_(size.usual), seats_(std::make_unique<seat[]>(size.most)) {
  assert(size.usual >= 1 && size.usual <= size.most && size.most <= most_lanes);
}

void lanes::rest() {
  {
    const std::lock_guard guard(lock_);
    stopping_.store(true);
  }
  while (call_one(size_.most)) {
  }
  for (auto& thread : threads_) thread.join();
  const std::lock_guard guard(lock_);
  threads_.clear();
  started_.store(false);
  stopping_.store(false);
}

status lanes::ready() {
  if (started_.load(std::memory_order_acquire)) return {};
  const std::lock_guard guard(lock_);
  if (started_.load()) return {};
  if (copies_ != nullptr) {
    if (auto problem = copies_->ready(); !problem.ok()) return problem;
  }
  auto problem = start(size_.usual);
  // Having fewer lanes only makes transfers slower; fail only if no lane started.
  if (threads_.empty()) return problem;
  started_.store(true, std::memory_order_release);
  return {};
}

// Call with the lock held.
status lanes::start(unsigned count) {
  try {
    threads_.reserve(size_.most);
    while (threads_.size() < count) threads_.emplace_back(&lanes::loop, this, static_cast<unsigned>(threads_.size()));
  } catch (const std::system_error& refused) {
    return no_worker(refused);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  return {};
}

status lanes::push(work_list& list, work& first, work& last, std::size_t count) {
  if (auto problem = ready(); !problem.ok()) return problem;
  queue_.push(list, first, last, count);
  wake(count, spinning_.load());
  return {};
}

void lanes::push_or_run(work_list& list, const work_chain& works) {
  if (works.count == 0 || push(list, *works.first, *works.last, works.count).ok()) return;
  for (auto* item = works.first; item != nullptr;) {
    auto* next = item->next_work;
    (void)item->run();
    item = next;
  }
}

void lanes::offer(work_list& list, work& item, bool wakes) {
  queue_.push(list, item, item, 1);
  if (wakes) wake(1, spinning_.load());
}

bool lanes::help(work_list& list) {
  work* item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

bool lanes::help_urgent(work_list& list) {
  work* item = urgent_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void lanes::push_urgent(work_list& list, work& item) {
  (void)ready();  // without threads, a waiting thread runs it
  urgent_.push(list, item, item, 1);
  if (spinning_.load() == 0) call_one(size_.most);
}

bool lanes::help_urgent() {
  work* item = urgent_.take();
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

// --- number of active lanes

void lanes::feed(const void* link, bool was_idle) noexcept {
  if (!size_.follows_links) return;
  for (auto& slot : fed_) {
    const void* known = slot.load(std::memory_order_relaxed);
    if (link == nullptr || known == link || (known == nullptr && slot.compare_exchange_strong(known, link)) || known == link) break;
  }
  if (was_idle) idle_feeds_.fetch_add(1, std::memory_order_relaxed);
  if (feeds_.fetch_add(1, std::memory_order_relaxed) % feeds_between == feeds_between - 1) adjust();
}

// Removes a lane if most work items wait for a link that is behind. Adds one per link if a link is often idle while work items are queued.
void lanes::adjust() noexcept {
  const unsigned idle = idle_feeds_.exchange(0);
  const unsigned waits = waits_.exchange(0);
  const unsigned links = links_fed();
  const unsigned most = links == 0 ? size_.most : std::min(size_.most, links * most_of_one_link);
  auto at_work = count();
  if (at_work > most || (waits > feeds_between / 2 && at_work > least_at_work)) {
    at_work_.compare_exchange_strong(at_work, at_work - 1);
  } else if (idle > feeds_between / 10 && at_work < most && queue_.size() > std::size_t{2} * at_work) {
    grow(std::min(most, at_work + std::max(links, 1U)));
  }
}

// Returns the number of links fed recently. Currently busy links are not a suitable measure, because links that wait for lanes are mostly
// idle.
unsigned lanes::links_fed() noexcept {
  unsigned now = 0;
  for (auto& slot : fed_) now += slot.exchange(nullptr) != nullptr ? 1 : 0;
  return std::max(now, links_before_.exchange(now));
}

void lanes::grow(unsigned to) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (stopping_.load() || (threads_.size() < to && !start(to).ok())) return;  // the running lanes continue
  }
  at_work_.store(to);
  wake(queue_.size(), spinning_.load());
}

// --- waking and sleeping

// Wakes up to two lanes, or none if the awake lanes will finish before another could wake. In a burst, each lane that finds work wakes the
// next two, so that the submitter does not pay for all of them.
void lanes::wake(std::size_t works, unsigned awake) {
  constexpr std::int64_t waking_ns = 50'000;
  const auto all_take_ns = static_cast<std::int64_t>(works) * typical_ns_.load(std::memory_order_relaxed);
  if (works == 0 || (awake > 0 && all_take_ns <= waking_ns * awake)) return;
  const unsigned at_work = at_work_.load();
  if (call_one(at_work) && works > 1) call_one(at_work);
}

// Wakes the first sleeping lane among the first `count` lanes, so that mostly the same lanes work. Returns false if none is sleeping.
bool lanes::call_one(unsigned count) noexcept {
  const std::uint64_t eligible = below(count);
  auto asleep = asleep_.load();
  while ((asleep & eligible) != 0) {
    const auto index = static_cast<unsigned>(std::countr_zero(asleep & eligible));
    if (!asleep_.compare_exchange_weak(asleep, asleep & ~(std::uint64_t{1} << index))) continue;
    seats_[index].called.store(1);
    seats_[index].called.notify_one();
    return true;
  }
  return false;
}

bool lanes::has_work_for(unsigned index) const noexcept {
  return stopping_.load() || urgent_.size() > 0 || (index < at_work_.load() && queue_.size() > 0);
}

// A submitter looks for sleeping lanes after it has queued a work item. A lane looks for work again before it sleeps. Therefore no wake-up
// is lost.
void lanes::sleep(unsigned index) {
  if (index >= at_work_.load())
    wake(queue_.size(), spinning_.load());  // it may have been woken for a work item that it must no longer
                                            // take
  const std::uint64_t mine = std::uint64_t{1} << index;
  asleep_.fetch_or(mine);
  if (has_work_for(index) && (asleep_.fetch_and(~mine) & mine) != 0) return;
  auto& called = seats_[index].called;
  called.wait(0);
  called.store(0);
}

// Lanes that are stopping take all remaining work items.
bool lanes::may_take() noexcept {
  if (size_.behind == nullptr) return true;
  return queue_.size() > 0 && (stopping_.load() || size_.behind->may_take(clock::now().time_since_epoch() / 1ns));
}

// urgent_run: number of urgent work items that this lane has taken in a row.
work* lanes::take(unsigned index, unsigned& urgent_run) {
  const bool others_turn = size_.urgent_in_a_row > 0 && urgent_run >= size_.urgent_in_a_row && queue_.size() > 0;
  if (work* item = others_turn ? nullptr : urgent_.take()) {
    ++urgent_run;
    return item;
  }
  urgent_run = 0;
  const unsigned at_work = at_work_.load(std::memory_order_relaxed);
  work* item = index < at_work && may_take() ? queue_.take() : nullptr;
  if (item == nullptr) return nullptr;
  const auto asleep = static_cast<unsigned>(std::popcount(asleep_.load(std::memory_order_relaxed) & below(at_work)));
  if (asleep > 0) wake(queue_.size(), at_work - asleep);
  return item;
}

// Returns true if there may be more to do immediately. soon: called right after a work item, when copies are short and more work is likely;
// spin instead of sleeping.
bool lanes::look_after_copies(feeders::watch& watch, bool soon) {
  if (copies_ == nullptr || !copies_->outstanding()) return false;
  if (!watch) watch = copies_->try_watch();
  if (!watch) return false;
  if (!copies_->pump()) soon ? relax() : nap();
  return true;
}

void lanes::note(clock::duration took) noexcept {
  const auto before = typical_ns_.load(std::memory_order_relaxed);
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  typical_ns_.store(before + (now - before) / 8, std::memory_order_relaxed);
}

void lanes::loop(unsigned index) {
  std::array<char, 16> name{};
  (void)std::snprintf(name.data(), name.size(), "%s%u", name_, index);
  become_worker(name.data());
  if (size_.behind != nullptr) be_nice();
  (void)prepare_to_throw();  // now, while there is memory: operator new throws and catches even if told not to
  auto busy = clock::now();
  feeders::watch watch;
  bool spins = false;
  unsigned urgent_run = 0;
  const auto spin = [&](bool now) {
    if (now != std::exchange(spins, now)) now ? spinning_.fetch_add(1) : spinning_.fetch_sub(1);
  };
  for (;;) {
    if (work* item = take(index, urgent_run)) {
      spin(false);
      watch.end();
      const bool from_far = item->from_far;
      const auto began = clock::now();
      (void)item->run();
      busy = clock::now();
      note(busy - began);
      if (from_far || busy - began >= long_work) busy -= spin_;
      if (copies_ != nullptr) copies_->pump();
      continue;
    }
    const bool soon = index < std::min(most_spinning, at_work_.load()) && clock::now() - busy < spin_;
    if (look_after_copies(watch, soon)) continue;
    watch.end();
    const bool copying = copies_ != nullptr && copies_->outstanding();
    const bool ends = stopping_.load() && queue_.size() == 0 && urgent_.size() == 0 && !copying;
    spin(soon && !ends);
    if (ends) return;
    if (soon) {
      relax();
    } else if (stopping_.load()) {
      nap();
    } else if (size_.behind != nullptr && queue_.size() > 0) {
      nap(right_of_way::quiet);  // normal work goes first; no caller waits for this work item
    } else {
      sleep(index);
    }
  }
}

}  // namespace penstock::staging
