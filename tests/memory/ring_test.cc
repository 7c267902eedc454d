// Memory runs out while a ring is made: the descriptors opened for it are closed.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "memory/failing_allocations.hpp"
#include "support/lacking.hpp"
#include "support/open_descriptors.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing::ring_memory {
namespace {

// True when an allocation was made to fail. Whether that escapes is the caller's affair, as in all of sys.
bool made_with_a_failure(sys::kernel& kernel, std::uint64_t nth) {
  const auto before = failed_allocations();
  try {
    const failing_allocations armed(allocations_of::the_caller, nth);
    (void)kernel.make_ring(8);
  } catch (const std::bad_alloc&) {
  }
  return failed_allocations() > before;
}

TEST(ring_memory, a_ring_that_memory_runs_out_for_leaves_no_descriptor) {
  PENSTOCK_SKIP_IF(lacks_rings());
  const auto kernel = sys::make_kernel();
  const auto before = descriptor_names_now();
  std::uint64_t nth = 1;
  while (made_with_a_failure(*kernel, nth)) ++nth;
  EXPECT_GT(nth, 1U) << "nothing was made to fail";
  EXPECT_EQ(opened_since(before, descriptor_names_now()), "");
}

}  // namespace
}  // namespace penstock::testing::ring_memory
