// Distinguishes a forked child from the process that created the object, without a system call. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/status.hpp"

namespace penstock::sys {

class fork_guard {
 public:
  fork_guard();
  fork_guard(const fork_guard&) = delete;
  fork_guard& operator=(const fork_guard&) = delete;
  ~fork_guard() = default;
  // Returns true in a child that was forked after this object was created.
  [[nodiscard]] bool forked() const noexcept;
  // Call in a process that may have been restored by CRIU, which does not restore the kernel's promise to wipe the page.
  static void renew() noexcept;

 private:
  using number = std::atomic<std::uint32_t>;
  // All objects of the process share one page with the process's number. The kernel wipes it on fork (MADV_WIPEONFORK, Linux 4.14), and the
  // child's first object writes another number. Null if the kernel lacks that.
  static number* shared_page() noexcept;
  static std::atomic<number*> page_of_process;

  const number* const page_;
  std::uint32_t mine_ = 0;
  int process_ = 0;
};

}  // namespace penstock::sys
