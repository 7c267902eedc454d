#include "base/checked.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace penstock {
namespace {

constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();

TEST(checked_add, adds_up_to_the_largest_value_and_no_further) {
  EXPECT_EQ(checked_add(2, 3), 5U);
  EXPECT_EQ(checked_add(largest, 0), largest);
  EXPECT_EQ(checked_add(largest, 1), std::nullopt);
  EXPECT_EQ(checked_add(largest, largest), std::nullopt);
}

TEST(range_end, stops_at_the_largest_file_offset) {
  EXPECT_EQ(range_end(0, 0), 0U);
  EXPECT_EQ(range_end(max_file_offset - 1, 1), max_file_offset);
  EXPECT_EQ(range_end(max_file_offset, 1), std::nullopt);
  EXPECT_EQ(range_end(1, largest), std::nullopt);
}

TEST(check_range, refuses_what_no_file_can_hold) {
  EXPECT_TRUE(check_range(0, 0).ok());
  EXPECT_TRUE(check_range(4096, 4096).ok());
  EXPECT_TRUE(check_range(std::numeric_limits<std::int64_t>::max(), 0).ok());
  EXPECT_EQ(check_range(-1, 1).code(), errc::invalid_argument);
  EXPECT_EQ(check_range(-1, 1).message(), "negative offset -1");
  EXPECT_EQ(check_range(std::numeric_limits<std::int64_t>::max(), 1).code(), errc::invalid_argument);
  EXPECT_EQ(check_range(1, largest).code(), errc::invalid_argument);
}

}  // namespace
}  // namespace penstock
