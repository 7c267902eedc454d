// The work items that lanes run, and the queue from which they take them. A work_list contains the work items of one request, first in,
// first out. The queue serves its lists in turn, one item each, so a small request never waits behind all pieces of a large one. The
// request owns its work items and lists. The queue forgets a list in the call that takes its last item.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/intrusive_list.hpp"
#include "base/spin_lock.hpp"

namespace penstock::staging {

class work {
 public:
  virtual ~work() = default;
  // Does the work, or starts it. Returns false if it cannot start now (no slab). A disk lane then runs it again later; copy lanes never
  // encounter this. The object may be destroyed when run() returns true.
  virtual bool run() = 0;

  work* next_work = nullptr;  // owned by the queue while queued
  // The next work item in the list shares what this one takes (a slab), and the queue hands out both before it serves another list.
  // Otherwise all slabs could be taken by work items whose completion depends on others that are queued behind items waiting for a slab.
  bool with_next = false;
  // The next such work item is delayed by a server, so a lane that has run this one does not spin for more.
  bool from_far = false;
};

struct work_list {
  work* head = nullptr;
  work* tail = nullptr;
  work_list* next_list = nullptr;
  work_list* previous_list = nullptr;
  bool linked = false;
};

// Work items from one list that are queued together.
struct work_chain {
  work* first = nullptr;
  work* last = nullptr;
  std::size_t count = 0;
  void add(work& item) noexcept {
    item.next_work = nullptr;
    (last == nullptr ? first : last->next_work) = &item;
    last = &item;
    ++count;
  }
};

class work_queue {
 public:
  // Appends the chain first..last (linked by next_work, count items) to the list.
  void push(work_list& list, work& first, work& last, std::size_t count);
  // Takes the next work item in turn. Returns null if the queue is empty. from: receives the item's list.
  work* take(work_list** from = nullptr);
  // Puts back a work item that take() returned, at the head of its list.
  void put_back(work_list& list, work& item);
  // Takes a work item from this list only.
  work* take_from(work_list& list);
  // Removes this work item from the list. Returns false if it is not there.
  bool remove(work_list& list, work& item);
  // Exact on the thread that last pushed or took an item; a hint on others.
  [[nodiscard]] std::size_t size() const noexcept { return size_.load(); }

 private:
  work* pop(work_list& list);  // call with the lock held, list not empty
  void link(work_list& list);
  void unlink(work_list& list);

  spin_lock lock_;             // guards the ring of lists and every linked list
  work_list* turn_ = nullptr;  // the next list to serve; a circular list
  std::atomic<std::size_t> size_{0};
};

class turn_list;

// A work item in a turn_list, which runs one item at a time (except those that turn_list::take() returns).
class turn_work : public work {
 public:
  // Runs carry() for this work item and then for items added to the list during the call.
  bool run() final;

 protected:
  virtual void carry() = 0;
  // Called after carry(), once the next work item has been taken from the list. The list may be destroyed when this returns.
  virtual void end() = 0;

 private:
  friend class turn_list;
  turn_list* turns_ = nullptr;
  turn_work* next_turn_ = nullptr;  // owned by the list
};

// First in, first out. Thread-safe. Must outlive the work items that have not ended.
class turn_list {
 public:
  // Returns true if it is this work item's turn. The caller must then run it.
  bool add(turn_work& added);
  // Removes a waiting work item, for the caller to run although another is running. Returns null if none is waiting.
  turn_work* take();

 private:
  friend class turn_work;
  turn_work* next();  // after a work item was carried out

  spin_lock lock_;  // guards the members below
  intrusive_list<turn_work, &turn_work::next_turn_> waiting_;
  unsigned carried_ = 0;
};

}  // namespace penstock::staging
