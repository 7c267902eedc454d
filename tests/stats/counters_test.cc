// The table of counters: each counted field of usage_stats has one line in it.
#include "stats/counters.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>

namespace penstock::testing {
namespace {

TEST(counters, each_has_a_line_and_a_name_of_its_own) {
  std::set<std::string> names;
  usage_stats seen;
  for (const auto& each : usage_counters()) {
    EXPECT_TRUE(names.emplace(each.name).second) << each.name;
    EXPECT_FALSE(each.what.empty()) << each.name;
    EXPECT_EQ(seen.*each.value, 0U) << each.name << " has two lines";
    seen.*each.value = 1;
  }
  // The counted fields stand in front of the others.
  EXPECT_EQ(usage_counters().size(), offsetof(usage_stats, lanes) / sizeof(std::uint64_t));
}

TEST(counters, are_found_by_their_fields) {
  constexpr auto place = stats::place_of(&usage_stats::reread_bytes);
  EXPECT_EQ(usage_counters()[place].name, "reread_bytes");
}

}  // namespace
}  // namespace penstock::testing
