// The number of concurrent requests to a server, on a clock that the test controls.
#include "remote/net/pace.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::source::remote {
namespace {

using namespace std::chrono_literals;

class paced : public ::testing::Test {
 protected:
  // Simulates a server that sends of_each MB/s to each of up to at_most requests of 1 MiB. Further requests add no throughput.
  void serve(std::chrono::milliseconds time, double of_each, unsigned at_most) {
    for (const auto end = now_ + time; now_ < end; now_ += 1ms) {
      seen_.in_flight = pace_.wanted();
      const double bytes = of_each * 1e3 * std::min(seen_.in_flight, at_most);
      seen_.bytes += static_cast<std::uint64_t>(bytes);
      // New connections respond at once.
      seen_.responses += seen_.in_flight > before_ ? seen_.in_flight - before_ : 0;
      before_ = seen_.in_flight;
      (void)pace_.look(seen_, now_);
    }
  }
  pace pace_{128};
  pace::progress seen_{};
  unsigned before_ = 0;
  pace::clock::time_point now_{1s};
};

TEST_F(paced, starts_with_few_and_grows_while_throughput_grows) {
  EXPECT_EQ(pace_.wanted(), pace::least);
  serve(3s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 128U);
}

// Each measurement takes 25 ms from a server that responds at once.
TEST_F(paced, opens_many_slow_connections_soon) {
  serve(100ms, 10, 1000);
  EXPECT_EQ(pace_.wanted(), 128U);
}

TEST_F(paced, a_server_that_sends_no_bytes_gets_no_more_requests) {
  serve(3s, 0, 1000);
  EXPECT_EQ(pace_.wanted(), pace::least);
}

TEST_F(paced, a_server_that_takes_long_to_respond_gets_more_requests_at_first) {
  pace_.meet(30ms);
  EXPECT_EQ(pace_.wanted(), pace::least_far);
  EXPECT_EQ(pace_.expected(), 128U) << "pieces are cut for as many";
  pace near(128);
  near.meet(1ms);
  EXPECT_EQ(near.wanted(), pace::least);
  EXPECT_EQ(near.expected(), pace::least);
  near.meet(30ms);
  EXPECT_EQ(near.wanted(), pace::least) << "only the first response counts";
}

TEST_F(paced, the_first_response_shows_that_a_server_takes_long) {
  seen_.in_flight = 1;
  EXPECT_FALSE(pace_.look(seen_, now_));
  seen_.latency = 30ms;
  seen_.responses = 1;
  EXPECT_TRUE(pace_.look(seen_, now_));
  EXPECT_EQ(pace_.wanted(), pace::least_far);
}

TEST_F(paced, measures_only_once_new_connections_have_responded) {
  pace_.meet(30ms);
  seen_.in_flight = 32;
  for (int i = 0; i < 100; ++i) (void)pace_.look(seen_, now_ += 10ms);
  EXPECT_EQ(pace_.wanted(), 32U);
  seen_.responses += 32;
  for (int i = 0; i < 10; ++i, seen_.bytes += 1000000) (void)pace_.look(seen_, now_ += 10ms);
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

TEST_F(paced, waits_longer_after_each_try_without_a_gain) {
  unsigned tries = 0;
  for (int i = 0; i < 300; ++i) {
    const auto before = pace_.wanted();
    serve(1s, 500, 32);
    tries += pace_.wanted() != before ? 1 : 0;
    serve(1ms, 500, 32);
  }
  EXPECT_LE(tries, 12U) << "5 s after the first, 80 s after the fifth";
  EXPECT_EQ(pace_.wanted(), 32U);
}

TEST_F(paced, few_are_doubled_unless_more_bring_less) {
  serve(3s, 500, 8);
  EXPECT_EQ(pace_.wanted(), 32U) << "as much, though not more";
}

TEST_F(paced, a_server_that_is_asked_too_much_is_asked_half_as_much) {
  serve(3s, 85, 1000);
  const auto asked = now_;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(pace_.throttled(asked - 1ms, now_));
  EXPECT_EQ(pace_.wanted(), 64U) << "once for all requests in flight";
  serve(5s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 64U);
  serve(20s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 128U);
}

TEST_F(paced, a_server_that_still_refuses_is_asked_less_and_less) {
  serve(3s, 85, 1000);
  for (const unsigned left : {64U, 32U, 16U, 8U, 4U, 2U, 1U}) {
    now_ += 10ms;
    EXPECT_TRUE(pace_.throttled(now_, now_ + 1ms));
    now_ += 1ms;
    EXPECT_EQ(pace_.wanted(), left);
  }
  EXPECT_FALSE(pace_.throttled(now_ + 1ms, now_ + 2ms)) << "there is always at least one connection";
  serve(10s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 128U) << "the number grows again after a while";
}

TEST_F(paced, no_more_are_wanted_than_the_server_accepts) {
  serve(3s, 85, 1000);
  pace_.limited(20, now_);
  EXPECT_EQ(pace_.wanted(), 20U);
  pace_.limited(30, now_);
  EXPECT_EQ(pace_.wanted(), 20U);
  serve(5s, 85, 1000);
  EXPECT_EQ(pace_.wanted(), 20U);
}

TEST_F(paced, learns_nothing_while_nobody_asks_for_much) {
  seen_.in_flight = 5;
  for (int i = 0; i < 1000; ++i) {
    seen_.bytes += 1'048'576;
    ++seen_.responses;
    EXPECT_FALSE(pace_.look(seen_, now_ += 1ms));
  }
  EXPECT_EQ(pace_.wanted(), pace::least);
}

TEST_F(paced, learns_though_a_connection_has_nothing_to_do_now_and_then) {
  for (int i = 0; i < 1000; ++i) {
    seen_.in_flight = i % 5 != 0 ? pace_.wanted() : 1;
    seen_.bytes += 65536;
    seen_.responses += 1;
    (void)pace_.look(seen_, now_ += 100us);
  }
  EXPECT_GT(pace_.wanted(), pace::least);
}

TEST_F(paced, takes_no_time_for_slow_in_which_nothing_was_asked) {
  for (int burst = 0; burst < 300; ++burst) {
    now_ += 150ms;
    pace_.resumes(seen_.responses);
    seen_.responses += pace_.wanted();
    serve(50ms, 500, 8);
  }
  EXPECT_LE(pace_.wanted(), 64U) << "one try above 32 at a time";
}

TEST_F(paced, never_wants_more_than_it_may) {
  for (int i = 0; i < 100; ++i) (void)pace_.throttled(now_ += 1ms, now_);
  EXPECT_EQ(pace_.wanted(), 1U);
  pace few(3);
  EXPECT_EQ(few.wanted(), pace::least);
}

}  // namespace
}  // namespace penstock::source::remote
