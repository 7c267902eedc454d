// The number of concurrent requests to a server, on a clock that the test controls.
#include "remote/net/pace.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::source::remote {
namespace {

using namespace std::chrono_literals;

class paced : public ::testing::Test {
 protected:
  // For so long, a server that gives each of up to at_most requests so many MB/s, and more of them no more.
  void serve(std::chrono::milliseconds time, double of_each, unsigned at_most) {
    const auto end = now_ + time;
    while (now_ < end) {
      const auto at_once = pace_.wanted();
      const double rate = of_each * 1e6 * std::min(at_once, at_most);
      now_ += std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * 1'048'576 / rate));
      pace_.took(1'048'576, now_, true);
    }
  }
  pace pace_{128};
  pace::clock::time_point now_{1s};
};

TEST_F(paced, begins_with_few_and_goes_on_while_more_bring_more) {
  EXPECT_EQ(pace_.wanted(), pace::least);
  serve(3s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 128U);
}

TEST_F(paced, goes_back_to_what_was_enough) {
  serve(3s, 500, 64);
  EXPECT_EQ(pace_.wanted(), 64U);
  serve(2s, 500, 64);
  EXPECT_EQ(pace_.wanted(), 64U);
}

TEST_F(paced, tries_again_later) {
  serve(3s, 500, 32);
  EXPECT_EQ(pace_.wanted(), 32U);
  serve(20s, 500, 128);
  EXPECT_EQ(pace_.wanted(), 128U);
}

TEST_F(paced, few_are_doubled_unless_more_bring_less) {
  serve(3s, 500, 8);
  EXPECT_EQ(pace_.wanted(), 32U) << "as much, though not more";
}

TEST_F(paced, a_server_that_is_asked_too_much_is_asked_half_as_much) {
  serve(3s, 85, 1000);
  for (int i = 0; i < 100; ++i) pace_.throttled(now_);
  EXPECT_EQ(pace_.wanted(), 64U);
  serve(5s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 64U);
  serve(20s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 128U);
}

TEST_F(paced, learns_nothing_while_nobody_asks_for_much) {
  for (int i = 0; i < 1000; ++i) pace_.took(1'048'576, now_ += 1ms, false);
  EXPECT_EQ(pace_.wanted(), pace::least);
}

TEST_F(paced, learns_though_a_connection_has_nothing_to_do_now_and_then) {
  for (int i = 0; i < 1000; ++i) pace_.took(65536, now_ += 100us, i % 5 != 0);
  EXPECT_GT(pace_.wanted(), pace::least);
}

TEST_F(paced, takes_no_time_for_slow_in_which_nothing_was_asked) {
  for (int burst = 0; burst < 300; ++burst) {
    now_ += 150ms;
    pace_.resumes();
    serve(50ms, 500, 8);
  }
  EXPECT_LE(pace_.wanted(), 64U) << "one try above 32 at a time";
  serve(1s, 500, 8);
  EXPECT_EQ(pace_.wanted(), 32U);
}

TEST_F(paced, never_wants_less_than_it_may_or_more) {
  for (int i = 0; i < 100; ++i) pace_.throttled(now_ += 11s);
  EXPECT_EQ(pace_.wanted(), pace::least);
  pace few(3);
  EXPECT_EQ(few.wanted(), pace::least);
}

}  // namespace
}  // namespace penstock::source::remote
