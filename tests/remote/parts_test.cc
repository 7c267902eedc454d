// How an object is split into parts, and which bytes of a part have arrived.
#include "remote/s3/parts.hpp"

#include <gtest/gtest.h>

namespace penstock::source::remote {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

TEST(parts_of_an_object, are_equal_where_its_size_is_known) {
  const auto plan = *part_plan::of_size(20 * mib);
  EXPECT_FALSE(plan.is_single());
  const auto first = plan.part_at(8 * mib - 1);
  EXPECT_EQ(first.number, 1U);
  EXPECT_EQ(first.length, 8 * mib);
  const auto last = plan.part_at(20 * mib - 1);
  EXPECT_EQ(last.number, 3U);
  EXPECT_EQ(last.offset, 16 * mib);
  EXPECT_EQ(last.length, 4 * mib);
}

TEST(parts_of_an_object, are_one_where_it_is_small) {
  EXPECT_TRUE(part_plan::of_size(0)->is_single());
  EXPECT_TRUE(part_plan::of_size(8 * mib)->is_single());
  EXPECT_FALSE(part_plan::of_size(8 * mib + 1)->is_single());
}

TEST(parts_of_an_object, are_no_more_than_ten_thousand) {
  for (const auto size : {80'000 * mib, 80'000 * mib + 1, most_object_bytes - 1, most_object_bytes}) {
    const auto last = part_plan::of_size(size)->part_at(size - 1);
    EXPECT_LE(last.number, most_parts) << size;
    EXPECT_EQ(last.offset + last.length, size);
  }
  EXPECT_EQ(part_plan::of_size(most_object_bytes + 1).error().code(), errc::invalid_argument);
}

TEST(parts_of_an_object, grow_with_their_number_where_its_size_is_not_known) {
  const part_plan plan;
  EXPECT_FALSE(plan.is_single());
  EXPECT_EQ(plan.part_at(0).length, 8 * mib);
  const auto of_second_thousand = plan.part_at(8'000 * mib);
  EXPECT_EQ(of_second_thousand.number, 1001U);
  EXPECT_EQ(of_second_thousand.offset, 8'000 * mib);
  EXPECT_EQ(of_second_thousand.length, 16 * mib);
  const auto last = plan.part_at(most_object_bytes - 1);
  EXPECT_LE(last.number, most_parts);
  EXPECT_LE(last.length, std::uint64_t{5} << 30);
}

TEST(parts_of_an_object, follow_each_other_without_gaps_where_its_size_is_not_known) {
  const part_plan plan;
  unsigned number = 0;
  for (std::uint64_t at = 0; at < 100'000 * mib;) {
    const auto part = plan.part_at(at);
    ASSERT_EQ(part.offset, at);
    ASSERT_EQ(part.number, ++number);
    at += part.length;
  }
}

TEST(ranges_that_have_come, are_whole_once_all_gaps_are_filled) {
  come_ranges come;
  EXPECT_EQ(come.first_gap(100), std::pair(std::uint64_t{0}, std::uint64_t{100}));
  EXPECT_TRUE(come.add(50, 60));
  EXPECT_TRUE(come.add(0, 10));
  EXPECT_EQ(come.first_gap(100), std::pair(std::uint64_t{10}, std::uint64_t{50}));
  EXPECT_TRUE(come.add(5, 55));
  EXPECT_EQ(come.first_gap(100), std::pair(std::uint64_t{60}, std::uint64_t{100}));
  EXPECT_TRUE(come.add(60, 100));
  EXPECT_TRUE(come.is_whole(100));
}

TEST(ranges_that_have_come, may_lie_in_so_many_pieces_and_no_more) {
  come_ranges come;
  for (std::uint64_t i = 0; i < come_ranges::most; ++i) ASSERT_TRUE(come.add(2 * i, 2 * i + 1));
  EXPECT_FALSE(come.add(2 * come_ranges::most, 2 * come_ranges::most + 1));
}

}  // namespace
}  // namespace penstock::source::remote
