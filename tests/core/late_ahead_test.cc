#include "core/cache/late_ahead.hpp"

#include <gtest/gtest.h>

namespace penstock::core::late_ahead_tests {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;

TEST(late_ahead, nothing_is_fetched_for_calls_anywhere) {
  late_ahead ahead;
  for (const std::uint64_t at : {5 * mib, mib, 9 * mib, 3 * mib, 4 * mib, 20 * mib}) EXPECT_EQ(ahead.next(at, mib, 64 * mib).length, 0U);
}

// Each byte once, in order, and never more than asked for.
TEST(late_ahead, calls_in_order_have_more_and_more_fetched_before_them) {
  late_ahead ahead;
  std::uint64_t fetched_to = 0;
  for (std::uint64_t at = 0; at < 200 * mib; at += mib) {
    const auto next = ahead.next(at, mib, 32 * mib);
    if (next.length == 0) continue;
    EXPECT_EQ(next.offset, fetched_to == 0 ? at + mib : fetched_to);
    fetched_to = next.offset + next.length;
    EXPECT_LE(fetched_to, at + mib + 32 * mib);
  }
  EXPECT_EQ(fetched_to, 200 * mib + 32 * mib);
}

TEST(late_ahead, small_calls_have_whole_requests_fetched) {
  late_ahead ahead;
  std::uint64_t fetches = 0;
  for (std::uint64_t at = 0; at < 8 * mib; at += 4 * kib) {
    const auto next = ahead.next(at, 4 * kib, 32 * mib);
    if (next.length == 0) continue;
    ++fetches;
    EXPECT_EQ((next.offset + next.length) % (128 * kib), 0U);
  }
  EXPECT_LE(fetches, 8 * mib / (128 * kib) + 40);
}

TEST(late_ahead, who_jumps_begins_anew) {
  late_ahead ahead;
  for (std::uint64_t at = 0; at < 8 * mib; at += mib) (void)ahead.next(at, mib, 32 * mib);
  EXPECT_EQ(ahead.next(0, mib, 32 * mib).length, 0U);
  EXPECT_EQ(ahead.next(mib, mib, 32 * mib).length, 0U);
  EXPECT_EQ(ahead.next(2 * mib, mib, 32 * mib).offset, 3 * mib);
}

TEST(late_ahead, long_calls_have_nothing_fetched) {
  late_ahead ahead;
  for (std::uint64_t at = 0; at < 320 * mib; at += 32 * mib) EXPECT_EQ(ahead.next(at, 32 * mib, 64 * mib).length, 0U);
}

}  // namespace
}  // namespace penstock::core::late_ahead_tests
