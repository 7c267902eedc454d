// What lanes run, and the queue they take it from. A work_list is one request's work, first in first out; the queue serves its
// lists in turn, one item each, so a small request never waits behind all pieces of a large one.
// Works and lists are owned by the request. The queue forgets a list in the call that takes its last item.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/intrusive_list.hpp"
#include "base/spin_lock.hpp"

namespace penstock::staging {

class work {
 public:
  virtual ~work() = default;
  // Does the work, or starts it. False: not now (no slab); a disk lane offers it again later, copy lanes never see false.
  // The object may be gone when run returns true.
  virtual bool run() = 0;

  work* next_work = nullptr;  // owned by the queue while queued
  // The next work of the list shares what this one takes (a slab), and the queue hands out both before it serves another list: else every
  // slab could come to be held by works whose rest waits behind others that want a slab.
  bool with_next = false;
  // The next one like it comes late, from a server: a lane that has run it does not spin for more.
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
  // Appends the chain first..last (linked by next_work) of count items to the list.
  void push(work_list& list, work& first, work& last, std::size_t count);
  // Takes the next item in turn; null when there is none. from: the list that it stood in.
  work* take(work_list** from = nullptr);
  // Puts back the first item of a list, which take() gave.
  void put_back(work_list& list, work& item);
  // Takes an item of this list only.
  work* take_from(work_list& list);
  // Takes this item out of the list. False: it is not there.
  bool remove(work_list& list, work& item);
  // Exact for the thread that pushed or took last; a hint for others.
  [[nodiscard]] std::size_t size() const noexcept { return size_.load(); }

 private:
  work* pop(work_list& list);  // lock held, list not empty
  void link(work_list& list);
  void unlink(work_list& list);

  spin_lock lock_;             // guards the ring of lists and every linked list
  work_list* turn_ = nullptr;  // whose turn it is; a circular list
  std::atomic<std::size_t> size_{0};
};

class turn_list;

// A work of which one at a time is carried, of those in a list.
class turn_work : public work {
 public:
  // Carries this one, and then those of the list that have come since.
  bool run() final;

 protected:
  virtual void carry() = 0;
  // After carry(), once the next has been taken from the list, which may be gone when this returns.
  virtual void end() = 0;

 private:
  friend class turn_list;
  turn_list* turns_ = nullptr;
  turn_work* next_turn_ = nullptr;  // the list's
};

// First in, first out. Thread-safe. Outlives the works that have not ended.
class turn_list {
 public:
  // True: it is its turn, and the caller has it run.
  bool add(turn_work& added);
  // Takes one out that waits, for the caller to run although another is carried; null when none does.
  turn_work* take();

 private:
  friend class turn_work;
  turn_work* next();  // after one that was carried

  spin_lock lock_;  // guards what follows
  intrusive_list<turn_work, &turn_work::next_turn_> waiting_;
  unsigned carried_ = 0;
};

}  // namespace penstock::staging
