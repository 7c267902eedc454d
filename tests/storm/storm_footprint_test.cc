// The rules by which the descriptors and the memory of a storm count as flat, and the report.
#include "storm/storm_footprint.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

footprint_series series_of(std::uint64_t (*resident_bytes)(std::uint64_t), std::uint64_t (*descriptors)(std::uint64_t), int samples = 180) {
  footprint_series made(1h);
  for (int i = 0; i < samples; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    made.note({resident_bytes(number), descriptors(number)});
  }
  return made;
}
std::uint64_t level(std::uint64_t /*sample*/) { return 1000; }
std::uint64_t noisy(std::uint64_t sample) { return 1000 + sample * 7919 % 101; }
std::uint64_t with_a_peak(std::uint64_t sample) { return sample > 170 ? 100000 : 1000; }
std::uint64_t growing(std::uint64_t sample) { return 1000 + sample; }
std::uint64_t shrinking(std::uint64_t sample) { return 1000 - sample; }

TEST(storm_footprint, level_noise_and_a_short_peak_of_descriptors_are_flat) {
  for (const auto descriptors : {level, noisy, with_a_peak, shrinking})
    EXPECT_EQ(series_of(level, descriptors).descriptor_growth(10), std::nullopt);
}

TEST(storm_footprint, growth_of_descriptors_is_told_with_what_is_allowed) {
  const auto told = series_of(level, growing).descriptor_growth(10).value_or("");
  EXPECT_EQ(told.find("open descriptors grew from 1030 to 1150"), 0U) << told;
  EXPECT_EQ(series_of(level, growing).descriptor_growth(120), std::nullopt);
}

TEST(storm_footprint, growth_of_memory_that_is_no_slab_is_told_with_what_is_allowed) {
  footprint_series slabs(1h), others(1h);
  for (std::uint64_t i = 0; i < 180; ++i) {
    slabs.note({.slab_bytes = growing(i), .malloc_bytes = 500, .other_bytes = 500});
    others.note({.slab_bytes = 1000, .malloc_bytes = 500, .other_bytes = growing(i)});
  }
  EXPECT_EQ(slabs.memory_growth(10), std::nullopt);
  const auto told = others.memory_growth(10).value_or("");
  EXPECT_EQ(told.find("memory that is no slab grew from 1530 to 1650 bytes"), 0U) << told;
  EXPECT_EQ(others.memory_growth(120), std::nullopt);
}

TEST(storm_footprint, resident_memory_that_grows_is_told_and_is_no_failure) {
  const auto grown = series_of(growing, level);
  EXPECT_EQ(grown.resident_change().value_or("").find("resident memory went from 1030 to 1150 bytes"), 0U);
  EXPECT_EQ(grown.descriptor_growth(0), std::nullopt);
}

TEST(storm_footprint, few_samples_say_nothing) {
  const auto few = series_of(growing, growing, 119);
  EXPECT_FALSE(few.thirds().has_value());
  EXPECT_EQ(few.descriptor_growth(0), std::nullopt);
  EXPECT_EQ(few.resident_change(), std::nullopt);
  EXPECT_NE(series_of(growing, growing, 120).descriptor_growth(0), std::nullopt);
}

TEST(storm_footprint, the_highest_of_each_is_kept) {
  const auto most = series_of(with_a_peak, growing).highest();
  EXPECT_EQ(most.resident_bytes, 100000U);
  EXPECT_EQ(most.descriptors, 1179U);
}

TEST(storm_footprint, an_open_descriptor_is_counted_until_it_is_closed) {
  const auto before = footprint_now();
  const int opened = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(footprint_now().descriptors, before.descriptors + 1);
  ::close(opened);
  EXPECT_EQ(footprint_now().descriptors, before.descriptors);
  EXPECT_GT(before.resident_bytes, 0U);
}

}  // namespace
}  // namespace penstock::testing
