// The composition of resident memory, according to smaps.
#include "storm/storm_mappings.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace penstock::testing {
namespace {

constexpr std::uint64_t storm_mib = std::uint64_t{1} << 20;

TEST(storm_mappings, mappings_of_a_kind_are_added_up) {
  std::istringstream smaps(
      "5500000000-5500001000 r--p 00000000 08:01 1234      /opt/a program\n"
      "Size:                  4 kB\nRss:                   4 kB\nVmFlags: rd mr mw me\n"
      "5500001000-5500009000 rw-p 00000000 00:00 0         [heap]\n"
      "Rss:                  32 kB\nVmFlags: rd wr mr mw me ac\n"
      "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n"
      "Rss:                 100 kB\nTHPeligible:    0\nVmFlags: rd wr mr mw me nr\n"
      "7f0001000000-7f0001400000 rw-p 00000000 00:00 0 \n"
      "Rss:                4096 kB\nVmFlags: rd wr mr mw me ac hg\n"
      "7f0002000000-7f0002400000 rw-p 00000000 00:00 0 \n"
      "Rss:                4096 kB\nVmFlags: rd wr mr mw me ac hg\n"
      "7f0003000000-7f0003800000 rw-p 00000000 00:00 0 \n"
      "Rss:                  12 kB\nVmFlags: rd wr mr mw me ac nh\n"
      "7f0004000000-7f0004800000 ---p 00000000 00:00 0 \n"
      "Rss:                   0 kB\nVmFlags: mr mw me nr\n"
      "7f0005000000-7f0005800000 rw-s 00000000 00:0f 77     anon_inode:[io_uring]\n"
      "Rss:                  16 kB\nVmFlags: rd wr sh mr mw me\n");
  const resident_kinds expected{
      {"/opt/a program", 4 << 10}, {"malloc", 132 << 10}, {"slabs", 8 << 20}, {"other", 12 << 10}, {"anon_inode:[io_uring]", 16 << 10}};
  EXPECT_EQ(resident_kinds_in(smaps), expected);
}

TEST(storm_mappings, kinds_that_changed_are_told_the_largest_first) {
  const resident_kinds before{{"malloc", 10 * storm_mib}, {"other", 5 * storm_mib}, {"gone", 2 * storm_mib}};
  const resident_kinds now{{"malloc", 9 * storm_mib}, {"other", 5 * storm_mib + 1000}, {"slabs", 64 * storm_mib}};
  EXPECT_EQ(changes_of_kinds(before, now), "slabs +64.0 MiB, gone -2.0 MiB, malloc -1.0 MiB");
  EXPECT_EQ(changes_of_kinds(now, now), "");
}

TEST(storm_mappings, memory_that_this_process_has_touched_is_there) {
  constexpr std::size_t bytes = 8 * storm_mib;
  const auto before = resident_kinds_now()["other"];
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 1, bytes);
  EXPECT_GE(resident_kinds_now()["other"], before + bytes);
  munmap(mapped, bytes);
}

TEST(storm_mappings, slabs_are_told_where_the_kernel_takes_advice_about_huge_pages) {
  constexpr std::size_t bytes = 64 << 10;
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const bool refused = madvise(mapped, bytes, MADV_HUGEPAGE) != 0;
  munmap(mapped, bytes);
  std::ifstream smaps("/proc/self/smaps");
  const std::string all(std::istreambuf_iterator<char>(smaps), {});
  EXPECT_EQ(slabs_are_told(), !refused && all.find("VmFlags:") != std::string::npos);
}

}  // namespace
}  // namespace penstock::testing
