// The network between a far test source and its bytes. It decides when, in which order and whether a fill is answered. Thread-safe. It has
// one thread and outlives the sources.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "source/source.hpp"

namespace penstock::testing {

class far_network {
 public:
  enum class answers {
    at_once,       // before the call that begins the fill returns
    late,          // on the network's thread, in order
    out_of_order,  // on the network's thread, in random order
    held,          // when the test says so, or when they are cancelled
    never,         // when the test says so; cancelling does not help
  };
  using read = std::function<io_result(::penstock::source::far_fill&)>;

  explicit far_network(answers how, unsigned fills_at_once = 256, unsigned seed = 1)
      : fills_at_once_(fills_at_once), how_(how), drawn_(seed), thread_([this] { serve(); }) {}
  far_network(const far_network&) = delete;
  far_network& operator=(const far_network&) = delete;
  ~far_network() {
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    EXPECT_TRUE(fills_.empty()) << "a source was not closed";
  }

  // --- for tests
  void set(answers how) {
    {
      const std::lock_guard guard(lock_);
      how_ = how;
    }
    changed_.notify_all();
  }
  // Waits until at least this many fills are under way. Returns how many there are.
  std::size_t wait_for_under_way(std::size_t count) {
    return wait_for(count, [this] { return fills_.size(); });
  }
  std::size_t wait_for_cancelled(std::size_t count) {
    return wait_for(count, [this] { return cancelled_; });
  }
  [[nodiscard]] std::size_t most_under_way() const {
    return with_lock([this] { return most_; });
  }
  [[nodiscard]] std::size_t under_way() const {
    return with_lock([this] { return fills_.size(); });
  }
  [[nodiscard]] std::size_t begun() const {
    return with_lock([this] { return begun_; });
  }
  // Returns the number of threads that have begun fills.
  [[nodiscard]] std::size_t threads() const {
    return with_lock([this] { return threads_.size(); });
  }
  // Answers this many fills, the newest first.
  void answer(std::size_t count) {
    for (std::unique_lock guard(lock_); count > 0 && !fills_.empty(); --count) answer(guard, fills_.end() - 1);
  }

  // --- for sources
  [[nodiscard]] unsigned fills_at_once() const noexcept { return fills_at_once_; }
  void begin(::penstock::source::far_fill& what, const ::penstock::source::source& of, read how_to) {
    std::unique_lock guard(lock_);
    threads_.insert(std::this_thread::get_id());
    fills_.push_back({&what, &of, std::move(how_to)});
    most_ = std::max(most_, fills_.size());
    ++begun_;
    if (how_ == answers::at_once) answer(guard, fills_.end() - 1);
    changed_.notify_all();
  }
  void cancel(const ::penstock::source::far_fill& what) {
    std::unique_lock guard(lock_);
    const auto found = std::find_if(fills_.begin(), fills_.end(), [&](const fill& each) { return each.what == &what; });
    if (found == fills_.end()) return;
    ++cancelled_;
    changed_.notify_all();
    if (how_ == answers::never) return;
    auto* const gone = found->what;
    fills_.erase(found);
    guard.unlock();
    gone->tell({0, {errc::cancelled, "the source was told that nobody wants it"}});
  }
  void close(const ::penstock::source::source& of) {
    std::unique_lock guard(lock_);
    for (;;) {
      const auto found = std::find_if(fills_.begin(), fills_.end(), [&](const fill& each) { return each.of == &of; });
      if (found == fills_.end()) break;
      answer(guard, found);
    }
    changed_.wait(guard, [&] { return telling_.count(&of) == 0; });
  }

 private:
  struct fill {
    ::penstock::source::far_fill* what;
    const ::penstock::source::source* of;
    read how_to;
  };

  template <class Question>
  std::size_t with_lock(Question ask) const {
    const std::lock_guard guard(lock_);
    return ask();
  }
  template <class Count>
  std::size_t wait_for(std::size_t count, Count now) {
    std::unique_lock guard(lock_);
    const bool came = changed_.wait_for(guard, std::chrono::seconds(60), [&] { return now() >= count; });
    EXPECT_TRUE(came) << now() << " of " << count;
    return now();
  }
  // Releases the lock meanwhile.
  void answer(std::unique_lock<std::mutex>& guard, std::vector<fill>::iterator which) {
    const auto [what, of, how_to] = std::move(*which);
    fills_.erase(which);
    const auto telling = telling_.insert(of);
    guard.unlock();
    what->tell(how_to(*what));
    guard.lock();
    telling_.erase(telling);
    changed_.notify_all();
  }
  void serve() {
    std::unique_lock guard(lock_);
    for (;;) {
      changed_.wait(guard, [this] { return stopping_ || (!fills_.empty() && (how_ == answers::late || how_ == answers::out_of_order)); });
      if (stopping_) return;
      const auto index = how_ == answers::late ? 0 : drawn_() % fills_.size();
      answer(guard, fills_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }

  const unsigned fills_at_once_;
  mutable std::mutex lock_;  // guards all members below
  std::condition_variable changed_;
  answers how_;
  std::mt19937 drawn_;
  std::vector<fill> fills_;
  std::multiset<const ::penstock::source::source*> telling_;
  std::set<std::thread::id> threads_;
  std::size_t most_ = 0;
  std::size_t begun_ = 0;
  std::size_t cancelled_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::testing
