// The reads of a request that remote sources have started, so that they can be abandoned when the request is stopped. Thread-safe.
#pragma once

#include <atomic>

#include "base/spin_lock.hpp"

namespace penstock::path {

// Reference-counted. The first reference belongs to the code that ends the read.
class begun_read {
 public:
  begun_read(const begun_read&) = delete;
  begun_read& operator=(const begun_read&) = delete;

  // Ends the job unless its bytes have arrived. The read keeps its memory until the source reports completion.
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
  begun_read* next_ = nullptr;  // owned by begun_reads, with its lock held
  begun_read* previous_ = nullptr;
  bool listed_ = false;
};

// Must outlive the jobs.
class begun_reads {
 public:
  // Returns false if the reads have been abandoned. The caller must then abandon this one.
  [[nodiscard]] bool add(begun_read& begun) noexcept;
  // Removes a read that continues. leave_all() may already have removed it.
  void remove(begun_read& gone) noexcept;
  // Abandons the reads of a stopped request. Does not block.
  void leave_all() noexcept;

 private:
  void unlink(begun_read& gone) noexcept;

  spin_lock lock_;  // guards the members below
  begun_read* first_ = nullptr;
  bool left_ = false;
};

}  // namespace penstock::path
