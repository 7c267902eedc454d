// Which piece of a server is late.
#include "source/remote/recent_times.hpp"

#include <gtest/gtest.h>

namespace penstock::source::remote {
namespace {

using namespace std::chrono_literals;

TEST(recent_times, call_nothing_late_before_some_are_known) {
  recent_times times;
  for (int i = 0; i < 15; ++i) times.took(10ms, 1000);
  EXPECT_FALSE(times.is_late(1h, 1000));
  times.took(10ms, 1000);
  EXPECT_TRUE(times.is_late(41ms, 1000));
  EXPECT_FALSE(times.is_late(39ms, 1000));
}

TEST(recent_times, leave_out_the_slowest_and_know_that_longer_pieces_take_longer) {
  recent_times times;
  for (int i = 0; i < 64; ++i) times.took(i % 16 == 0 ? 5s : 10ms, 1000);
  EXPECT_TRUE(times.is_late(41ms, 1000));
  EXPECT_FALSE(times.is_late(41ms, 2000));
  EXPECT_TRUE(times.is_late(81ms, 2000));
  for (int i = 0; i < 64; ++i) times.took(1s, 1000);
  EXPECT_FALSE(times.is_late(2s, 1000)) << "what is long ago says nothing of now";
}

}  // namespace
}  // namespace penstock::source::remote
