// A list that many threads add to and take from all the time, and that is walked now and then. The links lie in what is listed, so nothing
// is allocated; they are kept in shards by the thread that added them, each with a lock of its own, so that threads seldom meet. Knows no
// order. Thread-safe; what is listed belongs to one thread at a time, and may be read by whoever walks.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "base/spin_lock.hpp"
#include "base/thread_number.hpp"

namespace penstock {

// Listed has a function link() that gives its sharded_list<Listed>::link.
template <class Listed>
class sharded_list {
  struct alignas(64) shard {
    spin_lock lock;
    Listed* first = nullptr;
  };

 public:
  struct link {
    Listed* next = nullptr;
    Listed* previous = nullptr;
    shard* in = nullptr;
  };
  static constexpr std::size_t shard_count = 16;

  void add(Listed& added) noexcept {
    auto& here = shards_[this_thread_number() % shard_count];
    auto& links = added.link();
    links.in = &here;
    const std::lock_guard guard(here.lock);
    links.next = here.first;
    if (here.first != nullptr) here.first->link().previous = &added;
    here.first = &added;
  }

  // Of one that was added. Once this has returned nobody who walks looks at it.
  static void remove(Listed& gone) noexcept {
    auto& links = gone.link();
    auto& here = *links.in;
    const std::lock_guard guard(here.lock);
    (links.previous == nullptr ? here.first : links.previous->link().next) = links.next;
    if (links.next != nullptr) links.next->link().previous = links.previous;
    links = {};
  }

  // Changes one that was added while nobody looks at it.
  template <class Change>
  static void change(Listed& listed, Change change) {
    const std::lock_guard guard(listed.link().in->lock);
    change();
  }

  // Returns look(first), where first is the first of a shard (the others by link().next; null: none). look must neither allocate nor block.
  template <class Look>
  auto look_at(std::size_t shard, Look look) {
    auto& here = shards_[shard];
    const std::lock_guard guard(here.lock);
    return look(static_cast<const Listed*>(here.first));
  }

 private:
  std::array<shard, shard_count> shards_;
};

}  // namespace penstock
