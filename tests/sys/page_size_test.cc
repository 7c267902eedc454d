#include "sys/page_size.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstdint>

namespace penstock::sys {
namespace {

TEST(page_size_test, is_what_the_kernel_maps_files_by) {
  ASSERT_TRUE(std::has_single_bit(page_size()));
  const int fd = memfd_create("pages", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(2 * page_size())), 0);
  void* const second = mmap(nullptr, page_size(), PROT_READ, MAP_SHARED, fd, static_cast<off_t>(page_size()));
  EXPECT_NE(second, MAP_FAILED);
  EXPECT_EQ(mmap(nullptr, page_size(), PROT_READ, MAP_SHARED, fd, static_cast<off_t>(page_size() / 2)), MAP_FAILED);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % page_size(), 0U);
  munmap(second, page_size());
  close(fd);
}

TEST(page_size_test, values_are_rounded_to_whole_pages) {
  EXPECT_EQ(page_up(0), 0U);
  EXPECT_EQ(page_up(1), page_size());
  EXPECT_EQ(page_up(page_size()), page_size());
  EXPECT_EQ(page_down(page_size() - 1), 0U);
  EXPECT_EQ(page_down(2 * page_size() + 1), 2 * page_size());
}

}  // namespace
}  // namespace penstock::sys
