// Lists the read-ahead buffers of an engine's files. Read-ahead releases its slabs when other requests need them, when the engine is
// trimmed, and when no read has used it for a second or two. Thread-safe. Reference-counted, because a timer may still use the book when
// its engine is destroyed.
#pragma once

#include <mutex>
#include <vector>

#include "core/deadlines.hpp"
#include "source/read_ahead.hpp"

namespace penstock::core {

class ahead_book final : public timed {
 public:
  // The deadlines must outlive the call to end().
  explicit ahead_book(deadlines& by) noexcept : by_(by) {}

  // Call remove() before destroying the object. add() may throw std::bad_alloc.
  void add(source::read_ahead& added);
  void remove(source::read_ahead& gone) noexcept;
  // Starts the timer that frees unused read-ahead. Error: out_of_memory, after which unused read-ahead is not freed.
  status watch() noexcept;
  void give_back() noexcept;
  // Shuts the book down with its engine. Everything must have been removed.
  void end() noexcept;
  struct ending {
    void operator()(ahead_book* book) const noexcept { book->end(); }
  };

  // Called by the timer.
  void end_queued() override;

 private:
  ~ahead_book() override = default;
  status watch_locked() noexcept;

  deadlines& by_;
  std::mutex lock_;  // guards the members below
  std::vector<source::read_ahead*> all_;
  bool watched_ = false;
  bool ended_ = false;
};

}  // namespace penstock::core
