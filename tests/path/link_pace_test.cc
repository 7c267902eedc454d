// How long to sleep for copies over one link, several of which are under way: told of times that a link would show, in a time of its own.
#include "path/link_pace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace penstock::path::link_pace_tests {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr link_pace::clock::time_point start{std::chrono::hours(1)};

// One copy by itself, which takes so long. Returns how long it was to be slept for.
nanoseconds copy_alone(link_pace& pace, std::uint64_t bytes, nanoseconds took, link_pace::clock::time_point now = start) {
  const auto under_way = pace.begin(bytes, now);
  const auto wait = pace.most_of_wait(under_way, now);
  pace.end(under_way, true, now + took);
  return wait;
}

TEST(link_pace, knows_nothing_at_first_and_then_most_of_what_a_copy_takes) {
  link_pace pace;
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 0ns);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 7ms);
  EXPECT_EQ(copy_alone(pace, 16 * mib, 2ms), 1750us);
}

TEST(link_pace, bytes_ahead_are_waited_for_too_from_the_end_of_the_one_before_them) {
  link_pace pace;
  (void)copy_alone(pace, 64 * mib, 8ms);
  const auto first = pace.begin(64 * mib, start);
  const auto second = pace.begin(64 * mib, start + 2ms);
  EXPECT_EQ(pace.most_of_wait(second, start + 2ms), 12250us) << "7/8 of 16 less 2";
  pace.end(first, true, start + 8ms);
  const auto third = pace.begin(32 * mib, start + 12ms);
  EXPECT_EQ(pace.most_of_wait(third, start + 12ms), 7ms) << "4 ms of the second have passed";
  EXPECT_EQ(pace.most_of_wait(third, start + 30ms), 0ns) << "it is late";
}

TEST(link_pace, a_copy_alone_is_not_slowed_by_what_was_learnt_under_load) {
  link_pace pace;
  std::vector<link_pace::copy> all;
  for (int i = 0; i < 10; ++i) all.push_back(pace.begin(64 * mib, start));
  for (int i = 0; i < 10; ++i) pace.end(all[static_cast<std::size_t>(i)], true, start + (i + 1) * 8ms);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms, start + 1s), 7ms);
}

TEST(link_pace, quick_ones_are_believed_at_once_and_slow_ones_little_by_little) {
  link_pace pace;
  (void)copy_alone(pace, 64 * mib, 16ms);
  (void)copy_alone(pace, 64 * mib, 8ms);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 80ms), 7ms);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 7437500ns) << "17/16";
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 7ms);
}

TEST(link_pace, a_first_copy_that_stood_still_is_taken_for_one_of_the_slowest_link) {
  link_pace pace;
  (void)copy_alone(pace, 64 * mib, 1h);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), nanoseconds(64 * mib) * 7 / 8);
}

TEST(link_pace, nobody_sleeps_for_long_however_slow_the_link_was) {
  link_pace pace;
  (void)copy_alone(pace, 64 << 20, 10s);
  link_pace::copy last;
  for (int i = 0; i < 10; ++i) last = pace.begin(64 << 20, start);
  EXPECT_EQ(pace.most_of_wait(last, start), link_pace::most_slept);
}

TEST(link_pace, nothing_is_learnt_of_what_is_short_or_failed) {
  link_pace pace;
  (void)copy_alone(pace, link_pace::least_learnt_bytes - 1, 8ms);
  const auto failing = pace.begin(64 * mib, start);
  pace.end(failing, false, start + 1ms);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 0ns);
  EXPECT_EQ(copy_alone(pace, 64 * mib, 8ms), 7ms) << "the one that failed is not ahead of it";
}

TEST(link_pace, what_ended_says_that_all_before_it_have) {
  link_pace pace;
  (void)copy_alone(pace, 64 * mib, 8ms);
  const auto first = pace.begin(64 * mib, start);
  const auto second = pace.begin(64 * mib, start);
  pace.end(second, true, start + 16ms);
  const auto third = pace.begin(64 * mib, start + 16ms);
  EXPECT_EQ(pace.most_of_wait(third, start + 16ms), 7ms);
  pace.end(first, false, start + 17ms);
  const auto fourth = pace.begin(64 * mib, start + 20ms);
  EXPECT_EQ(pace.most_of_wait(fourth, start + 20ms), 10500us) << "7/8 of 16 less 4";
}

// --- lanes, each with one copy at a time under way, over a link that does one after the other

struct simulated {
  std::uint64_t looks = 0;  // at whether a copy has arrived, per copy, of the second half
  double busy = 0;          // the share of that time in which the link had something to do
};

// Each lane naps and looks as whoever copies kept pages does; a nap ends 50 us late.
simulated run(link_pace& pace, std::size_t lanes, nanoseconds each, int copies) {
  struct lane {
    link_pace::copy under_way;
    nanoseconds began{0}, ends{0}, looks_at{0};
    bool idle = true;
  };
  std::vector<lane> all(lanes);
  nanoseconds link_free{0};
  nanoseconds half{0};
  std::uint64_t looks = 0;
  for (int done = 0; done < copies;) {
    auto& next = *std::min_element(all.begin(), all.end(), [](const lane& a, const lane& b) { return a.looks_at < b.looks_at; });
    const auto now = next.looks_at;
    if (!next.idle) ++looks;
    if (!next.idle && now < next.ends) {
      next.looks_at = now + std::max<nanoseconds>(40us, (now - next.began) / 32) + 50us;
      continue;
    }
    if (!next.idle) pace.end(next.under_way, true, start + now);
    if (!next.idle && ++done == copies / 2) {
      half = now;
      looks = 0;
    }
    next.under_way = pace.begin(64 * mib, start + now);
    next.idle = false;
    next.began = now;
    next.ends = link_free = std::max(link_free, now) + each;
    const auto most = pace.most_of_wait(next.under_way, start + now);
    next.looks_at = now + (most >= 160us ? most + 50us : nanoseconds(0));
  }
  const auto last = std::max_element(all.begin(), all.end(), [](const lane& a, const lane& b) { return a.began < b.began; })->began;
  return {looks / static_cast<std::uint64_t>(copies / 2),
          static_cast<double>(copies / 2) * static_cast<double>(each.count()) / static_cast<double>((last - half).count())};
}

TEST(link_pace, ten_lanes_look_a_few_times_for_each_copy_and_keep_the_link_busy) {
  link_pace pace;
  const auto seen = run(pace, 10, 1200us, 2000);
  EXPECT_LE(seen.looks, 12U);
  EXPECT_GE(seen.looks, 1U);
  EXPECT_GE(seen.busy, 0.99);
}

TEST(link_pace, lanes_come_off_a_pace_that_was_too_slow) {
  link_pace pace;
  (void)copy_alone(pace, 64 * mib, 12ms, start - 1s);
  const auto seen = run(pace, 10, 1200us, 2000);
  EXPECT_LE(seen.looks, 12U);
  EXPECT_GE(seen.busy, 0.99);
}

TEST(link_pace, one_lane_loses_no_more_than_its_last_nap) {
  link_pace pace;
  EXPECT_GE(run(pace, 1, 1200us, 200).busy, 0.9);
}

}  // namespace
}  // namespace penstock::path::link_pace_tests
