#include "base/spin_lock.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace penstock {
namespace {

TEST(spin_lock, is_held_by_one_at_a_time) {
  spin_lock lock;
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  const std::unique_lock held(lock, std::try_to_lock);
  EXPECT_TRUE(held.owns_lock());
}

TEST(spin_lock, loses_no_update_of_many_threads) {
  constexpr int threads = 8;
  constexpr int rounds = 20000;
  spin_lock lock;
  long sum = 0;
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        const std::lock_guard held(lock);
        ++sum;
      }
    });
  }
  workers.clear();
  EXPECT_EQ(sum, long{threads} * rounds);
}

}  // namespace
}  // namespace penstock
