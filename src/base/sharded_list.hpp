// A list that many threads modify constantly and that is traversed occasionally. The links are members of the items, so nothing is
// allocated. Items are kept in shards, chosen by the thread that added them. Each shard has its own lock, so threads rarely contend.
// Unordered. Thread-safe; an item belongs to one thread at a time, and traversing threads may read it.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>

#include "base/spin_lock.hpp"
#include "base/thread_number.hpp"

namespace penstock {

// Listed must have a member function link() that returns its sharded_list<Listed>::link.
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

  // The item must be in the list. After this call returns, no traversing thread reads it.
  static void remove(Listed& gone) noexcept {
    auto& links = gone.link();
    auto& here = *links.in;
    const std::lock_guard guard(here.lock);
    (links.previous == nullptr ? here.first : links.previous->link().next) = links.next;
    if (links.next != nullptr) links.next->link().previous = links.previous;
    links = {};
  }

  // Modifies an item in the list while no traversing thread reads it.
  template <class Change>
  static void change(Listed& listed, Change change) {
    const std::lock_guard guard(listed.link().in->lock);
    change();
  }

  // Returns look(first) for the first item of a shard. The rest are linked through link().next; null marks the end. look must neither
  // allocate nor block.
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
