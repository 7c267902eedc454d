// Which memory far reads get.
#include "path/host_blocks.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

namespace penstock::path {
namespace {

TEST(host_blocks, keep_a_returned_block_while_another_is_in_use) {
  host_blocks blocks;
  const auto used = blocks.take(100);
  auto first = blocks.take(1000);
  const std::byte* const memory = first.get();
  first.reset();
  EXPECT_EQ(blocks.take(900).get(), memory) << "a smaller read gets the larger block";
  EXPECT_EQ(blocks.take(1000).get(), memory) << "the block keeps its size";
}

TEST(host_blocks, replace_a_kept_block_that_is_too_small) {
  host_blocks blocks;
  const auto used = blocks.take(1);
  blocks.take(10).reset();
  auto large = blocks.take(std::size_t{1} << 20);
  std::memset(large.get(), 7, std::size_t{1} << 20);
  const std::byte* const memory = large.get();
  large.reset();
  EXPECT_EQ(blocks.take(10).get(), memory);
}

TEST(host_blocks, outlive_their_owner) {
  std::optional<host_blocks> blocks(std::in_place);
  auto first = blocks->take(4096);
  auto second = blocks->take(4096);
  second.reset();
  blocks.reset();
  std::memset(first.get(), 7, 4096);
  first.reset();
}

}  // namespace
}  // namespace penstock::path
