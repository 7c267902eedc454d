#include "kv/catalogue.hpp"

#include <gtest/gtest.h>

#include "penstock/kv.hpp"

namespace penstock::kv {
namespace {

value_facts stored(catalogue& in, std::string_view key, std::uint64_t sequence, std::uint64_t length = block_bytes) {
  const auto place = in.reserve(length);
  EXPECT_TRUE(place);
  const value_facts facts{sequence, place ? place->offset : 0, length, {}};
  in.put(in.prepare(key), facts);
  return facts;
}

TEST(kv_catalogue, the_least_recently_used_that_nobody_reads_go_first) {
  catalogue of(10 * block_bytes);
  of.begin_writing();
  for (std::uint64_t i = 0; i < 4; ++i) stored(of, std::string(1, static_cast<char>('a' + i)), i + 1);
  of.end_read(of.begin_read("a"));
  auto* const read = of.begin_read("b");
  const auto victims = of.least_used(2 * block_bytes);
  ASSERT_EQ(victims.size(), 2U);
  EXPECT_EQ(victims[0]->key(), "c");
  EXPECT_EQ(victims[1]->key(), "d");
  of.end_read(read);
  EXPECT_EQ(of.begin_read("e"), nullptr);
}

TEST(kv_catalogue, a_value_that_is_read_keeps_its_extent_when_it_is_dropped) {
  catalogue of(2 * block_bytes);
  of.begin_writing();
  stored(of, "a", 1, 2 * block_bytes - 1);
  EXPECT_EQ(of.wasted_bytes(), 1U);
  auto* const read = of.begin_read("a");
  ASSERT_TRUE(of.drop("a", 1));
  EXPECT_EQ(of.find("a"), nullptr);
  EXPECT_FALSE(of.reserve(block_bytes));
  of.end_read(read);
  EXPECT_TRUE(of.reserve(2 * block_bytes));
  EXPECT_EQ(of.bytes() + of.wasted_bytes() + of.keys(), 0U);
}

TEST(kv_catalogue, the_extent_of_a_synced_value_is_kept_back_until_the_index_is_on_the_disk) {
  catalogue of(2 * block_bytes);
  of.begin_writing();
  stored(of, "a", 1, 2 * block_bytes);
  of.synced(1);
  ASSERT_TRUE(of.drop("a", 1));
  EXPECT_FALSE(of.reserve(block_bytes));
  of.free(of.kept_back());
  EXPECT_EQ(of.kept_back(), 0U);
  stored(of, "b", 2, 2 * block_bytes);
  ASSERT_TRUE(of.drop("b", 2));
  EXPECT_TRUE(of.reserve(block_bytes));
}

TEST(kv_catalogue, an_older_drop_does_not_reach_a_newer_value) {
  catalogue of(4 * block_bytes);
  of.begin_writing();
  stored(of, "a", 1);
  stored(of, "a", 2);
  EXPECT_FALSE(of.drop("a", 1));
  EXPECT_EQ(of.find("a")->facts().sequence, 2U);
  EXPECT_EQ(of.keys(), 1U);
  of.synced(1);
  of.drop_unsynced();
  EXPECT_EQ(of.keys(), 0U);
}

TEST(kv_catalogue, records_that_claim_what_is_taken_are_refused) {
  catalogue of(4 * block_bytes);
  EXPECT_TRUE(of.apply({record_kind::value, "a", {1, 0, 2 * block_bytes, {}}}));
  EXPECT_FALSE(of.apply({record_kind::value, "b", {2, block_bytes, 1, {}}}));
  EXPECT_TRUE(of.apply({record_kind::synced, {}, {1, 0, 0, {}}}));
  EXPECT_TRUE(of.apply({record_kind::dropped, "a", {1, 0, 0, {}}}));
  EXPECT_TRUE(of.apply({record_kind::value, "b", {2, block_bytes, 1, {}}}));
}

}  // namespace
}  // namespace penstock::kv
