#include "kv/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include "support/pattern.hpp"

namespace penstock::kv {
namespace {

std::uint64_t sum_of(std::span<const std::byte> bytes) {
  checksum sum;
  sum.add(bytes);
  return sum.value();
}

TEST(kv_checksum, the_instruction_and_the_table_agree_with_the_standard) {
  const auto nine = std::as_bytes(std::span(std::string_view("123456789")));
  EXPECT_EQ(crc32c(nine), 0xe3069283U);
  EXPECT_EQ(crc32c_by_table(nine), 0xe3069283U);
  const auto bytes = testing::pattern::make(10'000, 1);
  for (std::size_t length : {0U, 1U, 7U, 8U, 31U, 4096U, 9999U}) {
    const auto part = std::span(bytes).first(length);
    EXPECT_EQ(crc32c(part), crc32c_by_table(part)) << length;
    EXPECT_EQ(crc32c(part.subspan(length / 3), crc32c(part.first(length / 3))), crc32c(part)) << length;
  }
}

TEST(kv_checksum, how_the_bytes_are_cut_changes_nothing) {
  std::mt19937 random(7);
  const auto bytes = testing::pattern::make(5'000, 2);
  const auto whole = sum_of(bytes);
  for (int round = 0; round < 200; ++round) {
    checksum sum;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const auto part = std::min<std::size_t>(rest.size(), random() % 100);
      sum.add(rest.first(part));
      rest = rest.subspan(part);
    }
    ASSERT_EQ(sum.value(), whole);
  }
}

TEST(kv_checksum, a_changed_bit_a_swap_and_another_length_are_seen) {
  auto bytes = testing::pattern::make(1'000, 3);
  const auto whole = sum_of(bytes);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{1};
    ASSERT_NE(sum_of(bytes), whole) << at;
    bytes[at] ^= std::byte{1};
  }
  EXPECT_NE(sum_of(std::span(bytes).first(999)), whole);
  std::swap_ranges(bytes.begin(), bytes.begin() + 32, bytes.begin() + 32);
  EXPECT_NE(sum_of(bytes), whole);
  EXPECT_NE(sum_of(std::vector<std::byte>(32)), sum_of(std::vector<std::byte>(64)));
}

}  // namespace
}  // namespace penstock::kv
