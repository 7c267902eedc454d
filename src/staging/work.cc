#include "staging/work.hpp"

#include <mutex>
#include <utility>

namespace penstock::staging {

void work_queue::push(work_list& list, work& first, work& last, std::size_t count) {
  const std::lock_guard guard(lock_);
  last.next_work = nullptr;
  if (list.tail != nullptr) {
    list.tail->next_work = &first;
  } else {
    list.head = &first;
  }
  list.tail = &last;
  if (!list.linked) link(list);
  size_.fetch_add(count);
}

work* work_queue::take(work_list** from) {
  if (size_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard guard(lock_);
  if (turn_ == nullptr) return nullptr;
  work_list& list = *turn_;
  if (from != nullptr) *from = &list;
  if (!list.head->with_next) turn_ = list.next_list;
  return pop(list);
}

void work_queue::put_back(work_list& list, work& item) {
  const std::lock_guard guard(lock_);
  item.next_work = list.head;
  list.head = &item;
  if (list.tail == nullptr) list.tail = &item;
  if (!list.linked) link(list);
  size_.fetch_add(1);
}

work* work_queue::take_from(work_list& list) {
  const std::lock_guard guard(lock_);
  return list.head == nullptr ? nullptr : pop(list);
}

bool work_queue::remove(work_list& list, work& item) {
  const std::lock_guard guard(lock_);
  work* before = nullptr;
  for (work* each = list.head; each != &item; each = each->next_work) {
    if (each == nullptr) return false;
    before = each;
  }
  if (before == nullptr) {
    (void)pop(list);
    return true;
  }
  before->next_work = std::exchange(item.next_work, nullptr);
  if (list.tail == &item) list.tail = before;
  size_.fetch_sub(1);
  return true;
}

work* work_queue::pop(work_list& list) {
  work* taken = list.head;
  list.head = taken->next_work;
  if (list.head == nullptr) {
    list.tail = nullptr;
    unlink(list);
  }
  taken->next_work = nullptr;
  size_.fetch_sub(1);
  return taken;
}

void work_queue::link(work_list& list) {
  list.linked = true;
  if (turn_ == nullptr) {
    turn_ = list.next_list = list.previous_list = &list;
    return;
  }
  list.next_list = turn_;
  list.previous_list = turn_->previous_list;
  list.previous_list->next_list = &list;
  turn_->previous_list = &list;
}

void work_queue::unlink(work_list& list) {
  list.linked = false;
  if (list.next_list == &list) {
    turn_ = nullptr;
    return;
  }
  list.previous_list->next_list = list.next_list;
  list.next_list->previous_list = list.previous_list;
  if (turn_ == &list) turn_ = list.next_list;
}

bool turn_work::run() {
  for (auto* turn = this; turn != nullptr;) {
    turn->carry();
    auto* const next = turn->turns_->next();
    turn->end();
    turn = next;
  }
  return true;
}

bool turn_list::add(turn_work& added) {
  added.turns_ = this;
  const std::lock_guard guard(lock_);
  if (carried_ == 0) {
    carried_ = 1;
    return true;
  }
  waiting_.push_back(added);
  return false;
}

turn_work* turn_list::take() {
  const std::lock_guard guard(lock_);
  auto* const taken = waiting_.pop_front();
  if (taken != nullptr) ++carried_;
  return taken;
}

turn_work* turn_list::next() {
  const std::lock_guard guard(lock_);
  auto* const taken = waiting_.pop_front();
  if (taken == nullptr) --carried_;
  return taken;
}

}  // namespace penstock::staging
