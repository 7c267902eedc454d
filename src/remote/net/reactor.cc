#include "remote/net/reactor.hpp"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"
#include "sys/thread_clock.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr auto busy_look = 100ms;  // interval between timeout checks
constexpr auto idle_look = 2s;
constexpr double all_of_a_core = 0.9;

}  // namespace

result<std::unique_ptr<reactor>> reactor::make(line_owner& with, bool first) {
  auto poller = sys::linux_peer()->make_poller();
  if (!poller) return poller.error();
  std::unique_ptr<reactor> made(new reactor(with, first, *std::move(poller)));
  try {
    made->thread_ = std::thread([self = made.get()] { self->loop(); });
  } catch (const std::system_error& problem) {
    return staging::no_worker(problem);
  }
  return made;
}

reactor::~reactor() {
  stopping_.store(true);
  poller_->interrupt();
  if (thread_.joinable()) thread_.join();
}

void reactor::adopt(std::unique_ptr<line> made) {
  const std::lock_guard guard(lock_);
  new_.push_back(std::move(made));
  count_.fetch_add(1, std::memory_order_relaxed);
  poller_->interrupt();
}

void reactor::give(line& one) noexcept {
  {
    const std::lock_guard guard(lock_);
    given_.push_back(one);
  }
  poller_->interrupt();
}

void reactor::take_back(line& one) noexcept {
  const std::lock_guard guard(lock_);
  (void)given_.take_if([&](const line& each) { return &each == &one; });
}

void reactor::look() noexcept {
  look_.store(true);
  poller_->interrupt();
}

void reactor::loop() noexcept {
  staging::become_worker("penstock-web");
  std::array<sys::socket_event, 64> events;
  auto looked = clock::now();
  auto due = clock::time_point::max();
  while (!stopping_.load()) {
    const auto pause =
        std::any_of(lines_.begin(), lines_.end(), [](const auto& each) { return !each.second->is_idle(); }) ? busy_look : idle_look;
    auto limit = lines_.empty() ? sys::poller::for_ever : std::chrono::microseconds(pause);
    if (due != clock::time_point::max()) {
      limit = std::min<std::chrono::microseconds>(limit, busy_look);  // waiting fetches may be cancelled in between
      limit = std::clamp(std::chrono::ceil<std::chrono::microseconds>(due - clock::now()), std::chrono::microseconds(0), limit);
    }
    const auto count = poller_->wait(events, limit);
    if (!count) {
      staging::nap();  // the kernel is temporarily out of memory
      continue;
    }
    take_new();
    const auto now = clock::now();
    for (std::size_t i = 0; i < *count; ++i) tell(events[i]);
    const bool asked = look_.exchange(false);
    const bool looks = asked || now - looked >= busy_look;
    if (looks) {
      look_at_all(now);
      look_at_itself(now);
      looked = now;
    }
    if (first_ && (looks || now >= due)) due = owner_.queue_due(now);
  }
}

void reactor::take_new() noexcept {
  for (;;) {
    std::unique_ptr<line> made;
    line* given = nullptr;
    {
      const std::lock_guard guard(lock_);
      if (!new_.empty()) {
        made = std::move(new_.back());
        new_.pop_back();
      } else {
        given = given_.pop_front();
      }
    }
    if (made == nullptr && given == nullptr) return;
    if (given != nullptr) {
      keep_or_drop(*given, given->begin());
      continue;
    }
    auto& one = *made;
    one.token = next_token_++;
    const bool kept = or_without_memory(
        [&] {
          lines_[one.token] = std::move(made);  // `made` is unchanged if there is no memory for the entry
          return poller_->add(one.descriptor(), one.token, false).ok();
        },
        [] { return false; });
    if (kept) {
      keep_or_drop(one, one.begin());
    } else if (made == nullptr) {
      keep_or_drop(one, false);
    } else {
      owner_.gone(one);
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
}

void reactor::tell(const sys::socket_event& event) noexcept {
  const auto found = lines_.find(event.token);
  if (found == lines_.end()) return;
  auto& one = *found->second;
  keep_or_drop(one, one.ready());
}

void reactor::keep_or_drop(line& one, bool goes_on) noexcept {
  if (goes_on) {
    const bool writes = one.wants_to_write();
    const auto watched =
        writes == one.watches_for_room ? status() : or_no_memory([&] { return poller_->change(one.descriptor(), one.token, writes); });
    one.watches_for_room = writes;
    if (watched.ok()) return;
    one.lost(watched);
  }
  owner_.gone(one);
  poller_->remove(one.descriptor());
  lines_.erase(one.token);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void reactor::look_at_itself(clock::time_point now) noexcept {
  if (now - measured_ < busy_look) return;
  const auto cpu_ns = sys::thread_cpu_ns();
  const auto used = std::chrono::nanoseconds(cpu_ns - measured_cpu_ns_);
  const bool bound = measured_ != clock::time_point() && used >= all_of_a_core * (now - measured_);
  if (bound && std::any_of(lines_.begin(), lines_.end(), [](const auto& each) { return each.second->over_tls(); }))
    owner_.tls_bound(measured_, now);
  measured_ = now;
  measured_cpu_ns_ = cpu_ns;
}

void reactor::look_at_all(clock::time_point now) noexcept {
  for (auto at = lines_.begin(); at != lines_.end();) {
    auto& one = *(at++)->second;  // erasing does not invalidate other iterators
    keep_or_drop(one, one.look(now));
  }
}

}  // namespace penstock::source::remote
