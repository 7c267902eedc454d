// The reads of a request that far sources have begun, so that they can be left behind when it is stopped. Thread-safe.
#pragma once

#include <atomic>

#include "base/spin_lock.hpp"

namespace penstock::path {

// Counted by reference; the first one is of whoever ends it.
class begun_read {
 public:
  begun_read(const begun_read&) = delete;
  begun_read& operator=(const begun_read&) = delete;

  // Ends the job, unless the bytes have come. The read stays with its memory until the source has told it.
  virtual void leave() noexcept = 0;
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  begun_read() noexcept = default;
  virtual ~begun_read() = default;

 private:
  friend class begun_reads;
  std::atomic<int> references_{1};
  begun_read* next_ = nullptr;  // of begun_reads, with its lock
  begun_read* previous_ = nullptr;
  bool listed_ = false;
};

// Outlives the jobs.
class begun_reads {
 public:
  // False: they were left, and so is this one, by the caller.
  [[nodiscard]] bool add(begun_read& begun) noexcept;
  // One that goes on. It may have been taken out by who leaves them.
  void remove(begun_read& gone) noexcept;
  // Leaves them: of a request that was stopped. Does not block.
  void leave_all() noexcept;

 private:
  void unlink(begun_read& gone) noexcept;

  spin_lock lock_;  // guards what follows
  begun_read* first_ = nullptr;
  bool left_ = false;
};

}  // namespace penstock::path
