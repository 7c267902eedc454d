#include "kv/extents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace penstock::kv {
namespace {

constexpr std::uint64_t block = 4096;

TEST(kv_extents, the_smallest_hole_that_is_long_enough_is_taken) {
  extents of(100 * block);
  ASSERT_TRUE(of.take_at({10 * block, block}));
  ASSERT_TRUE(of.take_at({14 * block, block}));  // holes of 10, 3 and 85 blocks
  EXPECT_EQ(of.take(2 * block)->offset, 11 * block);
  EXPECT_EQ(of.take(4 * block)->offset, 0U);
  EXPECT_EQ(of.take(20 * block)->offset, 15 * block);
  EXPECT_FALSE(of.take(66 * block));
}

TEST(kv_extents, neighbours_that_are_free_become_one) {
  extents of(4 * block);
  std::vector<extent> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(*of.take(block));
  EXPECT_FALSE(of.take(block));
  for (const int i : {0, 2, 3, 1}) of.give(taken[static_cast<std::size_t>(i)]);
  EXPECT_EQ(of.holes(), 1U);
  EXPECT_TRUE(of.take(4 * block));
}

TEST(kv_extents, what_is_taken_or_outside_cannot_be_taken) {
  extents of(4 * block);
  ASSERT_TRUE(of.take_at({block, block}));
  EXPECT_FALSE(of.take_at({0, 2 * block}));
  EXPECT_FALSE(of.take_at({block, block}));
  EXPECT_FALSE(of.take_at({3 * block, 2 * block}));
  EXPECT_FALSE(of.take_at({~std::uint64_t{0} - block + 1, block}));
  EXPECT_FALSE(of.take_at({3 * block, ~std::uint64_t{0} - block + 1}));
  EXPECT_FALSE(of.take_at({2 * block, 0}));
  of.grow(6 * block);
  EXPECT_TRUE(of.take_at({3 * block, 3 * block}));
}

TEST(kv_extents, random_ones_never_overlap_and_all_come_back) {
  std::mt19937 random(11);
  constexpr std::uint64_t blocks = 512;
  extents of(blocks * block);
  std::vector<bool> used(blocks);
  std::vector<extent> taken;
  const auto mark = [&](const extent& which, bool now) {
    for (std::uint64_t at = which.offset / block; at < (which.offset + which.length) / block; ++at) {
      ASSERT_NE(used[at], now);
      used[at] = now;
    }
  };
  for (int step = 0; step < 5000; ++step) {
    if (taken.empty() || random() % 5 < 3) {
      const auto one = of.take((1 + random() % 16) * block);
      if (!one) continue;
      mark(*one, true);
      taken.push_back(*one);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      mark(taken.back(), false);
      of.give(taken.back());
      taken.pop_back();
    }
    ASSERT_EQ(of.free_bytes() / block, static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false)));
  }
  for (const extent& each : taken) of.give(each);
  EXPECT_EQ(of.holes(), 1U);
}

}  // namespace
}  // namespace penstock::kv
