// Distinguishes a forked child from the process that created the object, without a system call. Thread-safe.
#pragma once

#include "penstock/status.hpp"

namespace penstock::sys {

class fork_guard {
 public:
  fork_guard();
  fork_guard(const fork_guard&) = delete;
  fork_guard& operator=(const fork_guard&) = delete;
  ~fork_guard();
  // Returns true in a child that was forked after this object was created.
  [[nodiscard]] bool forked() const noexcept;

 private:
  volatile int* page_ = nullptr;  // wiped by the kernel on fork (MADV_WIPEONFORK, Linux 4.14); null if the kernel lacks that
  int process_ = 0;
};

}  // namespace penstock::sys
