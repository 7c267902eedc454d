#include "staging/right_of_way.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace penstock::staging {
namespace {

constexpr std::int64_t quiet_ns = right_of_way::quiet.count();
constexpr std::int64_t pace_ns = right_of_way::pace.count();
constexpr std::int64_t start_ns = 1'000'000'000'000;

struct noted_background_waits final : background_waits {
  void let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept override { waits.push_back(ended_ns - began_ns); }
  std::vector<std::int64_t> waits;
};

TEST(right_of_way, background_work_is_taken_at_once_where_nothing_else_was_ever_under_way) {
  right_of_way way;
  EXPECT_TRUE(way.may_take(start_ns));
  EXPECT_TRUE(way.may_take(start_ns));
}

TEST(right_of_way, normal_work_holds_up_the_background_until_it_has_been_over_for_a_while) {
  right_of_way way;
  ASSERT_TRUE(way.may_take(start_ns));
  way.enter(2);
  EXPECT_FALSE(way.may_take(start_ns + 1));
  way.leave();
  EXPECT_FALSE(way.may_take(start_ns + 2));
  way.leave();
  EXPECT_FALSE(way.may_take(start_ns + 3 + quiet_ns - 2));
  EXPECT_TRUE(way.may_take(start_ns + 3 + quiet_ns));
}

TEST(right_of_way, normal_work_that_came_and_went_unseen_counts) {
  right_of_way way;
  ASSERT_TRUE(way.may_take(start_ns));
  way.enter();
  way.leave();
  EXPECT_FALSE(way.may_take(start_ns + 1));
  EXPECT_TRUE(way.may_take(start_ns + 1 + quiet_ns));
}

TEST(right_of_way, background_work_is_taken_now_and_then_beside_normal_work_that_never_ends) {
  right_of_way way;
  way.enter();
  ASSERT_TRUE(way.may_take(start_ns));
  EXPECT_FALSE(way.may_take(start_ns + 1));
  EXPECT_FALSE(way.may_take(start_ns + pace_ns - 1));
  EXPECT_TRUE(way.may_take(start_ns + pace_ns));
  EXPECT_FALSE(way.may_take(start_ns + pace_ns + 1));
  EXPECT_TRUE(way.may_take(start_ns + 2 * pace_ns));
}

TEST(right_of_way, waits_are_told_once_they_are_over) {
  noted_background_waits told;
  right_of_way way(&told);
  way.enter();
  ASSERT_TRUE(way.may_take(start_ns));
  EXPECT_FALSE(way.may_take(start_ns + 100));
  EXPECT_FALSE(way.may_take(start_ns + 200));
  EXPECT_TRUE(told.waits.empty());
  EXPECT_TRUE(way.may_take(start_ns + pace_ns));
  EXPECT_EQ(told.waits, std::vector<std::int64_t>{pace_ns - 100});
}

TEST(right_of_way, callers_say_what_they_do_only_beside_background_requests) {
  right_of_way way;
  ASSERT_TRUE(way.may_take(start_ns));
  { const going_first alone(way); }
  EXPECT_TRUE(way.may_take(start_ns + 1));
  way.begin_background();
  { const going_first beside(way); }
  EXPECT_FALSE(way.may_take(start_ns + 2));
  way.end_background();
  EXPECT_FALSE(way.is_asked());
}

}  // namespace
}  // namespace penstock::staging
