// Heads of maps: a written head can be read again, and anything else is rejected.
#include "remote/cache/cache_map.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace penstock::testing {
namespace {

using namespace source::remote;

cache_map_head some_head() {
  return {.identity = std::string(64, 'a'),
          .shown = "https://example.org/data.bin",
          .version = "\"etag\"",
          .size = (std::uint64_t{1} << 40) + 5,
          .data_inode = 123456789,
          .boot = "0f3b9f5c-1111-2222-3333-444455556666",
          .is_sealed = true,
          .data_changed_ns = 1'700'000'000'123'456'789};
}

TEST(cache_map, a_head_is_read_as_it_was_written) {
  const auto head = some_head();
  const auto back = decode_cache_head(encode(head));
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->names_same(head));
  EXPECT_EQ(back->shown, head.shown);
  EXPECT_EQ(back->boot, head.boot);
  EXPECT_EQ(back->data_inode, head.data_inode);
  EXPECT_TRUE(back->is_sealed);
  EXPECT_EQ(back->data_changed_ns, head.data_changed_ns);
}

// From https://github.com/Cyan4973/xxHash: of nothing, of "a", and of texts that use all steps.
TEST(cache_map, the_sum_of_a_block_is_xxh64) {
  const auto sum = [](std::string_view text) { return cache_sum_of(std::as_bytes(std::span(text))); };
  EXPECT_EQ(sum(""), 0xef46db3751d8e999U);
  EXPECT_EQ(sum("a"), 0xd24ec4f1a98c6e5bU);
  EXPECT_EQ(sum("abc"), 0x44bc2cf5ad770999U);
  EXPECT_EQ(sum("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1U);
}

TEST(cache_map, a_long_url_is_cut) {
  auto head = some_head();
  head.shown = std::string(8000, 'x');
  const auto back = decode_cache_head(encode(head));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->shown, std::string(most_cache_text_bytes, 'x'));
}

TEST(cache_map, a_head_with_any_byte_changed_or_cut_is_not_read) {
  const auto text = encode(some_head());
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto other = text;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(decode_cache_head(other)) << i;
  }
  EXPECT_FALSE(decode_cache_head(std::span(text).first(4095)));
  EXPECT_FALSE(decode_cache_head({}));
}

TEST(cache_map, lengths_and_sizes_that_cannot_be_are_not_read_though_the_sum_is_right) {
  std::mt19937_64 drawn(3);
  const auto text = encode(some_head());
  for (int i = 0; i < 20'000; ++i) {
    auto other = text;
    for (int changes = 0; changes < 3; ++changes) other[drawn() % 1200] = static_cast<std::byte>(drawn());
    mend_cache_head(other);
    const auto head = decode_cache_head(other);
    if (!head) continue;
    EXPECT_LE(head->size, most_cached_object_bytes);
    EXPECT_GT(head->size, 0U);
    EXPECT_LE(head->version.size(), most_cache_text_bytes);
  }
}

TEST(cache_map, versions_and_sizes_are_told_apart) {
  const auto head = some_head();
  auto other = head;
  other.version = "\"etag2\"";
  EXPECT_FALSE(head.names_same(other));
  other = head;
  other.size += 1;
  EXPECT_FALSE(head.names_same(other));
  other = head;
  other.shown = "elsewhere";
  EXPECT_TRUE(head.names_same(other));
}

}  // namespace
}  // namespace penstock::testing
