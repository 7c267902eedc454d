// Copies into memory that may not be writable, in both ways.
#include "sys/checked_copy.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "support/child.hpp"
#include "support/pattern.hpp"
#include "sys/page_size.hpp"

namespace penstock::sys {
namespace {

namespace pattern = penstock::testing::pattern;
const std::size_t page = page_size();
const std::size_t writable = 40 * page;

// The number of the first check that fails; 0: none.
int wrong_copy() {
  const auto source = pattern::make(writable + page, 1);
  auto* const memory =
      static_cast<std::byte*>(::mmap(nullptr, writable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || ::mprotect(memory + writable, page, PROT_READ) != 0) return 1;
  const auto whole = copy_checked(memory + 3, source.data(), writable - 3);
  if (!whole || *whole != writable - 3 || !std::equal(source.begin(), source.begin() + writable - 3, memory + 3)) return 2;
  const auto part = copy_checked(memory + writable - 100, source.data(), 200);
  const auto copied = static_cast<std::ptrdiff_t>(part.value_or(0));
  if (copied > 100 || !std::equal(source.begin(), source.begin() + copied, memory + writable - 100)) return 3;
  if (!part && part.error().code() != errc::bad_memory) return 6;
  const auto none = copy_checked(memory + writable, source.data(), 10);
  if (none.ok() || none.error().code() != errc::bad_memory || none.error().native() != EFAULT) return 4;
  if (const auto nothing = copy_checked(nullptr, source.data(), 0); !nothing || *nothing != 0) return 5;
  return ::munmap(memory, writable + page);
}

TEST(checked_copies, end_where_memory_cannot_be_written) { EXPECT_EQ(wrong_copy(), 0); }

TEST(checked_copies, need_no_permission_to_write_to_this_process) {
  const int outcome = testing::run_in_child([] { return testing::deny_system_call(SYS_process_vm_writev, EPERM) ? wrong_copy() : 77; });
  if (outcome == 77) GTEST_SKIP() << "seccomp filters cannot be set here";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace penstock::sys
