#include "path/begun_reads.hpp"

#include <mutex>

namespace penstock::path {

bool begun_reads::add(begun_read& begun) noexcept {
  const std::lock_guard guard(lock_);
  if (left_) return false;
  begun.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &begun;
  first_ = &begun;
  begun.listed_ = true;
  return true;
}

void begun_reads::remove(begun_read& gone) noexcept {
  const std::lock_guard guard(lock_);
  if (gone.listed_) unlink(gone);
}

void begun_reads::unlink(begun_read& gone) noexcept {
  (gone.previous_ == nullptr ? first_ : gone.previous_->next_) = gone.next_;
  if (gone.next_ != nullptr) gone.next_->previous_ = gone.previous_;
  gone.listed_ = false;
}

void begun_reads::leave_all() noexcept {
  for (;;) {
    begun_read* next = nullptr;
    {
      const std::lock_guard guard(lock_);
      left_ = true;
      next = first_;
      if (next == nullptr) return;
      unlink(*next);
      next->references_.fetch_add(1, std::memory_order_relaxed);
    }
    next->leave();
    next->release();
  }
}

}  // namespace penstock::path
