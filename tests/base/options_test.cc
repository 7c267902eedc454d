#include "penstock/options.hpp"

#include <gtest/gtest.h>

#include <string>

#include "penstock/version.hpp"

namespace penstock {
namespace {

TEST(options, every_path_kind_survives_its_name) {
  const auto names = path_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto kind = static_cast<path_kind>(i);
    EXPECT_EQ(to_string(kind), names[i]);
    const auto parsed = parse_path_kind(to_string(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
}

TEST(options, the_enumerators_of_path_kind_have_the_names_of_their_paths) {
  EXPECT_EQ(to_string(path_kind::automatic), "automatic");
  EXPECT_EQ(to_string(path_kind::posix), "posix");
  EXPECT_EQ(to_string(path_kind::staged), "staged");
  EXPECT_EQ(to_string(path_kind::mapped), "mapped");
  EXPECT_EQ(to_string(path_kind::direct), "direct");
  EXPECT_EQ(to_string(path_kind::dma_buf), "dma_buf");
}

TEST(options, every_preference_survives_its_name) {
  for (const auto prefer : {preference::automatic, preference::speed, preference::cpu}) {
    const auto parsed = parse_preference(to_string(prefer));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, prefer);
  }
}

TEST(options, every_use_of_the_cache_survives_its_name) {
  for (const auto cache : {cache_use::automatic, cache_use::fill, cache_use::bypass}) {
    const auto parsed = parse_cache_use(to_string(cache));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, cache);
  }
  EXPECT_EQ(parse_cache_use("kept").error().message(), "cache \"kept\" is not one of auto, fill, bypass");
  EXPECT_EQ(*parse_cache_use("keep"), cache_use::fill) << "its old name";
}

TEST(options, every_priority_survives_its_name) {
  for (const auto priority : {request_priority::normal, request_priority::background}) {
    const auto parsed = parse_request_priority(to_string(priority));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, priority);
  }
  EXPECT_EQ(parse_request_priority("urgent").error().message(), "priority \"urgent\" is not one of normal, background");
}

TEST(options, a_wrong_word_is_named_with_the_right_ones) {
  const status error = parse_path_kind("stagged").error();
  EXPECT_EQ(error.code(), errc::invalid_argument);
  EXPECT_EQ(error.message(), "path \"stagged\" is not one of automatic, posix, staged, mapped, direct, dma_buf");
  EXPECT_EQ(parse_preference("").error().message(), "preference \"\" is not one of automatic, speed, cpu");
  EXPECT_FALSE(parse_path_kind("Staged").ok());
}

TEST(options, a_value_outside_the_enumeration_is_called_unknown) { EXPECT_EQ(to_string(static_cast<path_kind>(99)), "unknown"); }

TEST(version, is_made_of_the_three_numbers) {
  EXPECT_EQ(version(), std::to_string(PENSTOCK_VERSION_MAJOR) + "." + std::to_string(PENSTOCK_VERSION_MINOR) + "." +
                           std::to_string(PENSTOCK_VERSION_PATCH));
}

}  // namespace
}  // namespace penstock
