// A first-in, first-out list whose items are linked through a member, so that adding one allocates nothing. An item can be in only one list
// per link at a time, and must not move in memory while it is in a list. Not thread-safe.
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
  [[nodiscard]] std::size_t size() const noexcept {  // walks the list
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
  // Returns null if the list is empty.
  Item* pop_front() noexcept { return empty() ? nullptr : std::exchange(first_, first_->*next); }
  // Removes and returns the items that match. Both lists keep their order.
  template <class Predicate>
  intrusive_list take_if(Predicate matches) {
    intrusive_list taken;
    auto all = std::move(*this);
    while (Item* each = all.pop_front()) (matches(*each) ? taken : *this).push_back(*each);
    return taken;
  }

 private:
  Item* first_ = nullptr;
  Item* last_ = nullptr;  // unspecified if empty
};

}  // namespace penstock
