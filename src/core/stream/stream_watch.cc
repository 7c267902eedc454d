#include "core/stream/stream_watch.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "staging/worker.hpp"

namespace penstock::core {

namespace {

bool is_same_file(const source::source& one, const source::source& other) {
  if (&one == &other) return true;
  const auto& mine = one.facts();
  const auto& its = other.facts();
  return mine.inode != 0 && mine.inode == its.inode && mine.device == its.device;
}

bool overlap(const stream_write& one, std::uint64_t offset, std::uint64_t length) noexcept {
  return one.offset < offset + length && offset < one.offset + one.length;
}

}  // namespace

void stream_watch::rest() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  arrived_.fetch_add(1);
  arrived_.notify_one();
  thread_.join();
  stopping_.store(false);
  // The remaining requests were given up, because a running operation keeps the engine alive.
  take_arrivals();
  while (auto* const first = firsts_.pop_front()) {
    auto behind = std::exchange(first->behind_, {});
    first->end();
    while (auto* const each = behind.pop_front()) each->end();
  }
}

status stream_watch::start() {
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread(&stream_watch::run, this);
  } catch (const std::system_error& problem) {
    return staging::no_worker(problem);
  }
  return {};
}

status stream_watch::add(const void* stream, stream_watched& added) {
  {
    const std::lock_guard guard(lock_);
    if (auto problem = start(); !problem.ok()) return problem;
    added.stream_ = stream;
    arrivals_.push_back(added);
  }
  arrived_.fetch_add(1, std::memory_order_release);
  arrived_.notify_one();
  return {};
}

void stream_watch::add_write(const stream_write& queued) {
  const std::lock_guard guard(writes_lock_);
  writes_.push_back(queued);
}

void stream_watch::remove_write(const stream_write& over) noexcept {
  const std::lock_guard guard(writes_lock_);
  const auto found = std::ranges::find_if(writes_, [&](const stream_write& each) {
    return each.to == over.to && each.offset == over.offset && each.length == over.length && each.passes_early == over.passes_early;
  });
  if (found != writes_.end()) writes_.erase(found);
}

bool stream_watch::is_written_to(const source::source& file, std::uint64_t offset, std::uint64_t length) {
  const std::lock_guard guard(writes_lock_);
  return std::ranges::any_of(writes_,
                             [&](const stream_write& each) { return overlap(each, offset, length) && is_same_file(*each.to, file); });
}

bool stream_watch::is_being_written_to(const source::source& file, std::uint64_t offset, std::uint64_t length) {
  const std::lock_guard guard(writes_lock_);
  return std::ranges::any_of(writes_, [&](const stream_write& each) {
    return each.passes_early != nullptr && each.passes_early->passed() && overlap(each, offset, length) && is_same_file(*each.to, file);
  });
}

void stream_watch::take_arrivals() noexcept {
  row arrived;
  {
    const std::lock_guard guard(lock_);
    arrived = std::exchange(arrivals_, {});
  }
  while (auto* const each = arrived.pop_front()) {
    auto* first = firsts_.empty() ? nullptr : &firsts_.front();
    while (first != nullptr && first->stream_ != each->stream_) first = first->next_first_;
    first == nullptr ? firsts_.push_back(*each) : first->behind_.push_back(*each);
  }
}

// Looks at the first request of a stream, and at the next one whenever the stream has passed a request. at_all: looks at the others too,
// because threads that share a stream, or streams that share a handle (the per-thread default stream), may have queued them in a different
// order. Returns the first remaining request, or null.
stream_watched* stream_watch::look_at_row(stream_watched* first, bool at_all, bool& moved) noexcept {
  using seen = stream_watched::seen;
  auto behind = std::exchange(first->behind_, {});
  bool goes_on = false;
  while (first != nullptr) {
    const auto found = first->look();
    moved |= found == seen::moved || found == seen::over;
    goes_on = found == seen::passed;
    if (found != seen::over) break;
    std::exchange(first, behind.pop_front())->end();
  }
  if (at_all || goes_on) {
    auto over = behind.take_if([&](stream_watched& each) {
      if (!at_all && !goes_on) return false;
      const auto found = each.look();
      moved |= found == seen::moved || found == seen::over;
      goes_on = goes_on && found >= seen::passed;
      return found == seen::over;
    });
    while (auto* const each = over.pop_front()) each->end();
  }
  if (first != nullptr) first->behind_ = std::move(behind);
  return first;
}

bool stream_watch::look(bool at_all) noexcept {
  bool moved = false;
  auto firsts = std::exchange(firsts_, {});
  while (auto* const each = firsts.pop_front()) {
    if (auto* const left = look_at_row(each, at_all, moved)) firsts_.push_back(*left);
  }
  return moved;
}

void stream_watch::wait_for_arrivals() {
  const auto seen = arrived_.load(std::memory_order_acquire);
  {
    const std::lock_guard guard(lock_);
    if (!arrivals_.empty() || stopping_.load()) return;
  }
  arrived_.wait(seen);
}

void stream_watch::run() {
  staging::become_worker("penstock-stream");
  constexpr unsigned looks_between = 16;  // polls between two looks at all requests, while there is no progress
  auto moved = clock::now();
  std::uint32_t seen = 0;
  unsigned still = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (const auto now = arrived_.load(std::memory_order_acquire); now != seen) {
      seen = now;
      take_arrivals();
      moved = clock::now();
    }
    if (firsts_.empty()) {
      wait_for_arrivals();
    } else if (look(still % looks_between == looks_between - 1)) {
      moved = clock::now();
      still = 0;
    } else if (clock::now() - moved < spin_) {
      staging::relax();
    } else {
      ++still;
      staging::nap();
    }
  }
}

}  // namespace penstock::core
