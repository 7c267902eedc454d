// What an engine reads ahead, file by file: from where it is taken back when others want slabs, when the engine is trimmed, and when
// nobody has gone on reading for a second or two. Thread-safe. Counted by reference, since a timer may look at it when its engine ends.
#pragma once

#include <mutex>
#include <vector>

#include "core/deadlines.hpp"
#include "source/read_ahead.hpp"

namespace penstock::core {

class ahead_book final : public timed {
 public:
  // The deadlines outlive the last call of end().
  explicit ahead_book(deadlines& by) noexcept : by_(by) {}

  // What is added is removed before it goes. Adding may throw std::bad_alloc.
  void add(source::read_ahead& added);
  void remove(source::read_ahead& gone) noexcept;
  // From now on it is looked after what nobody uses any more. Errors: out_of_memory; then nobody looks.
  status watch() noexcept;
  void give_back() noexcept;
  // The engine ends, and all has been removed.
  void end() noexcept;
  struct ending {
    void operator()(ahead_book* book) const noexcept { book->end(); }
  };

  // The timer's.
  void end_queued() override;

 private:
  ~ahead_book() override = default;
  status watch_locked() noexcept;

  deadlines& by_;
  std::mutex lock_;  // guards what follows
  std::vector<source::read_ahead*> all_;
  bool watched_ = false;
  bool ended_ = false;
};

}  // namespace penstock::core
