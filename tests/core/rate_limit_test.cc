#include "core/rate_limit.hpp"

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

constexpr std::uint64_t rate_mib = std::uint64_t{1} << 20;
constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::int64_t begin_ns = 1000 * second_ns;
constexpr std::int64_t burst_ns = token_bucket::burst.count();

TEST(token_bucket, a_full_one_lets_anything_through_and_is_then_in_debt) {
  token_bucket bucket(rate_mib);
  ASSERT_TRUE(bucket.is_open(begin_ns));
  bucket.take(8 * rate_mib, begin_ns);
  EXPECT_FALSE(bucket.is_open(begin_ns + 1));
  EXPECT_EQ(bucket.open_ns(), begin_ns - burst_ns + 8 * second_ns);
  EXPECT_TRUE(bucket.is_open(bucket.open_ns()));
}

TEST(token_bucket, over_time_no_more_flows_than_the_limit_the_burst_and_one_piece) {
  constexpr std::uint64_t piece = 4096;
  constexpr std::int64_t step_ns = 10'000;
  constexpr std::int64_t seconds = 3;
  token_bucket bucket(rate_mib);
  std::uint64_t flowed = 0;
  for (std::int64_t now = begin_ns; now < begin_ns + seconds * second_ns; now += step_ns) {
    if (!bucket.is_open(now)) continue;
    bucket.take(piece, now);
    flowed += piece;
  }
  const auto allowed = static_cast<double>(rate_mib) * (static_cast<double>(seconds) + static_cast<double>(burst_ns) / 1e9);
  EXPECT_LE(static_cast<double>(flowed), allowed + piece);
  EXPECT_GE(static_cast<double>(flowed), static_cast<double>(rate_mib * seconds) * 0.99) << "less than the limit allows";
}

TEST(token_bucket, what_is_given_back_can_be_taken_again) {
  token_bucket bucket(rate_mib);
  bucket.take(rate_mib, begin_ns);
  ASSERT_FALSE(bucket.is_open(begin_ns));
  bucket.give_back(rate_mib);
  EXPECT_TRUE(bucket.is_open(begin_ns));
}

TEST(token_bucket, the_greatest_length_over_the_least_limit_is_a_long_time_and_no_overflow) {
  token_bucket bucket(1);
  for (int i = 0; i < 100; ++i) bucket.take(~std::uint64_t{0}, begin_ns);
  EXPECT_GT(bucket.open_ns(), begin_ns + 365 * 24 * 3600 * second_ns);
}

}  // namespace
}  // namespace penstock::core
