// Which piece from a server counts as late.
#include "remote/net/recent_times.hpp"

#include <gtest/gtest.h>

namespace penstock::source::remote {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t mebibyte = 1 << 20;

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
  for (int i = 0; i < 64; ++i) times.took(i % 16 == 0 ? 5s : 10ms, mebibyte);
  EXPECT_TRUE(times.is_late(41ms, mebibyte));
  EXPECT_FALSE(times.is_late(41ms, 2 * mebibyte));
  EXPECT_TRUE(times.is_late(81ms, 2 * mebibyte));
  for (int i = 0; i < 64; ++i) times.took(1s, mebibyte);
  EXPECT_FALSE(times.is_late(2s, mebibyte)) << "what is long ago says nothing of now";
}

// The end of an object, say, that came as late as the rest.
TEST(recent_times, that_a_short_piece_took_do_not_grow_with_the_length_of_others) {
  recent_times times;
  for (int i = 0; i < 64; ++i) times.took(10ms, 77);
  EXPECT_TRUE(times.is_late(41ms, mebibyte));
}

}  // namespace
}  // namespace penstock::source::remote
