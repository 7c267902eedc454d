#include "core/cache/late_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock::core::late_ahead_tests {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::int64_t ms = 1'000'000;

// Calls for a file, each of which takes so long, or, once something has been fetched, so long.
struct caller {
  explicit caller(std::int64_t plain, std::int64_t fetched) : plain_ns(plain), fetched_ns(fetched) {}

  late_ahead::range call(std::uint64_t at, std::uint64_t length) {
    const auto next = ahead.next(at, length, 32 * mib, now);
    fetched += next.length;
    fetched_to = std::max(fetched_to, next.offset + next.length);
    now += at < fetched_to ? fetched_ns : plain_ns;
    return next;
  }
  void calls(std::uint64_t from, std::uint64_t to, std::uint64_t length) {
    for (auto at = from; at < to; at += length) (void)call(at, length);
  }

  late_ahead ahead;
  std::int64_t plain_ns, fetched_ns;
  std::int64_t now = 5'000'000 * ms;
  std::uint64_t fetched = 0;
  std::uint64_t fetched_to = 0;
};

TEST(late_ahead, nothing_is_fetched_for_calls_anywhere) {
  caller by(10 * ms, ms);
  for (const std::uint64_t at : {5 * mib, mib, 9 * mib, 3 * mib, 4 * mib, 20 * mib}) EXPECT_EQ(by.call(at, mib).length, 0U);
}

// Each byte once, in order, and never more than asked for.
TEST(late_ahead, calls_in_order_have_more_and_more_fetched_before_them) {
  caller by(10 * ms, ms);
  std::uint64_t to = 0;
  for (std::uint64_t at = 0; at < 200 * mib; at += mib) {
    const auto next = by.call(at, mib);
    if (next.length == 0) continue;
    EXPECT_EQ(next.offset, to == 0 ? at + mib : to);
    to = next.offset + next.length;
    EXPECT_LE(to, at + mib + 32 * mib);
  }
  EXPECT_EQ(to, 200 * mib + 32 * mib);
}

TEST(late_ahead, small_calls_have_whole_requests_fetched) {
  caller by(10 * ms, ms);
  std::uint64_t fetches = 0;
  for (std::uint64_t at = 0; at < 8 * mib; at += 4 * kib) {
    const auto next = by.call(at, 4 * kib);
    if (next.length == 0) continue;
    ++fetches;
    EXPECT_EQ((next.offset + next.length) % (128 * kib), 0U);
  }
  EXPECT_GE(by.fetched_to, 8 * mib);
  EXPECT_LE(fetches, 500U);
}

TEST(late_ahead, who_jumps_begins_anew) {
  caller by(10 * ms, ms);
  by.calls(0, 8 * mib, mib);
  for (std::uint64_t i = 0; i < late_ahead::timed_plain; ++i) EXPECT_EQ(by.call(i * mib, mib).length, 0U);
  EXPECT_EQ(by.call(late_ahead::timed_plain * mib, mib).offset, (late_ahead::timed_plain + 1) * mib);
}

// A server that answers one question at a time gives 1 MiB for one in a tenth of the time of eight.
TEST(late_ahead, what_makes_calls_slower_is_left) {
  caller by(10 * ms, 80 * ms);
  by.calls(0, 100 * mib, mib);
  const auto before = by.fetched;
  EXPECT_LE(before, 16 * mib);
  by.calls(100 * mib, 400 * mib, mib);
  EXPECT_EQ(by.fetched, before);
}

TEST(late_ahead, what_was_left_is_tried_again_later) {
  caller by(10 * ms, 80 * ms);
  by.calls(0, 100 * mib, mib);
  by.fetched_ns = ms;
  const auto before = by.fetched;
  by.calls(100 * mib, 800 * mib, mib);
  EXPECT_GT(by.fetched, before + 100 * mib);
}

TEST(late_ahead, long_calls_have_nothing_fetched) {
  caller by(10 * ms, ms);
  by.calls(0, 640 * mib, 32 * mib);
  EXPECT_EQ(by.fetched, 0U);
}

}  // namespace
}  // namespace penstock::core::late_ahead_tests
