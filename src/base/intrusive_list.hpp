// Items in a row, first in, first out, linked by a member of theirs: adding one allocates nothing. An item is in at most one list of that
// link at a time, and stays where it is in memory meanwhile. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>

namespace penstock {

template <class Item, Item* Item::*next>
class intrusive_list {
 public:
  intrusive_list() noexcept = default;
  intrusive_list(intrusive_list&& other) noexcept : first_(std::exchange(other.first_, nullptr)), last_(other.last_) {}
  intrusive_list& operator=(intrusive_list other) noexcept {
    first_ = std::exchange(other.first_, nullptr);
    last_ = other.last_;
    return *this;
  }
  ~intrusive_list() = default;

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept {  // counts them
    std::size_t count = 0;
    for (const Item* each = first_; each != nullptr; each = each->*next) ++count;
    return count;
  }
  [[nodiscard]] Item& front() const noexcept { return *first_; }
  void push_back(Item& added) noexcept {
    added.*next = nullptr;
    (empty() ? first_ : last_->*next) = &added;
    last_ = &added;
  }
  // Null when empty.
  Item* pop_front() noexcept { return empty() ? nullptr : std::exchange(first_, first_->*next); }
  // Takes out those of which this is true. Both rows keep their order.
  template <class Predicate>
  intrusive_list take_if(Predicate matches) {
    intrusive_list taken;
    auto all = std::move(*this);
    while (Item* each = all.pop_front()) (matches(*each) ? taken : *this).push_back(*each);
    return taken;
  }

 private:
  Item* first_ = nullptr;
  Item* last_ = nullptr;  // nothing when empty
};

}  // namespace penstock
