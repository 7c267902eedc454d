// The works that lanes run, and the queue that they take them from. A work_list holds the works of one request, first in first out. The
// queue serves its lists in turn, one work each, so a small request never waits behind all pieces of a large one. The request owns its
// works and lists. The queue forgets a list in the call that takes its last work.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/intrusive_list.hpp"
#include "base/spin_lock.hpp"

namespace penstock::staging {

class work {
 public:
  virtual ~work() = default;
  // Does the work, or starts it. Returns false if it cannot start now (no slab): a disk lane runs it again later; copy lanes never see
  // false. The object may be destroyed when run returns true.
  virtual bool run() = 0;

  work* next_work = nullptr;  // owned by the queue while queued
  // The next work of the list shares what this one takes (a slab), and the queue hands out both before it serves another list. Otherwise
  // works could come to hold every slab while the works that complete them wait behind others that want a slab.
  bool with_next = false;
  // The next such work comes late, from a server: a lane that has run this one does not spin for more.
  bool from_far = false;
};

struct work_list {
  work* head = nullptr;
  work* tail = nullptr;
  work_list* next_list = nullptr;
  work_list* previous_list = nullptr;
  bool linked = false;
};

// Works of one list that are queued together.
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
  // Appends the chain first..last (linked by next_work, count works) to the list.
  void push(work_list& list, work& first, work& last, std::size_t count);
  // Takes the next work in turn. Returns null if the queue is empty. from: receives the work's list.
  work* take(work_list** from = nullptr);
  // Puts back a work that take() returned, at the head of its list.
  void put_back(work_list& list, work& item);
  // Takes a work of this list only.
  work* take_from(work_list& list);
  // Takes this work out of the list. Returns false if it is not there.
  bool remove(work_list& list, work& item);
  // Exact on the thread that last pushed or took; a hint on others.
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

// A work of a turn_list, which runs one work at a time (except those that turn_list::take() returns).
class turn_work : public work {
 public:
  // Runs carry() for this work and then for works added to the list meanwhile.
  bool run() final;

 protected:
  virtual void carry() = 0;
  // Called after carry(), once the next work has been taken from the list. The list may be destroyed when this returns.
  virtual void end() = 0;

 private:
  friend class turn_list;
  turn_list* turns_ = nullptr;
  turn_work* next_turn_ = nullptr;  // owned by the list
};

// First in, first out. Thread-safe. Must outlive the works that have not ended.
class turn_list {
 public:
  // Returns true if it is this work's turn: the caller then has it run.
  bool add(turn_work& added);
  // Takes out a waiting work, for the caller to run although another is running. Returns null if none waits.
  turn_work* take();

 private:
  friend class turn_work;
  turn_work* next();  // after a work was carried

  spin_lock lock_;  // guards the members below
  intrusive_list<turn_work, &turn_work::next_turn_> waiting_;
  unsigned carried_ = 0;
};

}  // namespace penstock::staging
