#include "base/stream_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace penstock {
namespace {

constexpr std::size_t around = 64;
constexpr std::byte untouched{0xee};

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 31 % 251);
  return made;
}

// As memcpy does it, and nothing beside the target.
void expect_copied(const std::vector<std::byte>& source, std::size_t from, std::size_t to, std::size_t bytes) {
  std::vector<std::byte> target(around + to + bytes + around, untouched);
  stream_copy(target.data() + around + to, source.data() + from, bytes);
  std::vector<std::byte> expected(target.size(), untouched);
  std::memcpy(expected.data() + around + to, source.data() + from, bytes);
  EXPECT_EQ(target, expected) << bytes << " from " << from << " to " << to;
}

TEST(stream_copy, copies_what_memcpy_copies_whatever_the_alignment) {
  const auto source = numbered(1 << 12);
  for (const std::size_t bytes : {0U, 1U, 15U, 16U, 63U, 64U, 65U, 127U, 128U, 1000U, 2048U}) {
    for (const std::size_t from : {0U, 1U, 8U, 33U}) {
      for (const std::size_t to : {0U, 1U, 16U, 63U}) expect_copied(source, from, to, bytes);
    }
  }
}

TEST(stream_copy, copies_more_than_a_cache_holds) {
  const auto source = numbered((4 << 20) + 77);
  std::vector<std::byte> target(source.size());
  stream_copy(target.data(), source.data(), source.size());
  EXPECT_TRUE(std::ranges::equal(target, source));
}

}  // namespace
}  // namespace penstock
