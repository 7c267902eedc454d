#include <gtest/gtest.h>

// The command is an executable, so this part of it is compiled here again; sizes_test.cc has the other part that it needs.
#include "cli/common/transfer_memory.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

class transfer_memory_test : public ::testing::TestWithParam<const char*> {
 protected:
  engine owner_ = *engine::create();
  transfer_memory memory_{owner_, *choose_memory(owner_, GetParam())};
};

TEST_P(transfer_memory_test, is_used_again_for_what_fits) {
  ASSERT_TRUE(memory_.make_room(4 * mib).ok());
  const void* const first = memory_.data();
  ASSERT_NE(first, nullptr);
  for (const std::uint64_t length : {4 * mib, std::uint64_t{1}, 3 * mib}) {
    ASSERT_TRUE(memory_.make_room(length).ok());
    EXPECT_EQ(memory_.data(), first);
    EXPECT_EQ(memory_.size(), 4 * mib);
  }
}

TEST_P(transfer_memory_test, grows_for_what_does_not_fit) {
  ASSERT_TRUE(memory_.make_room(mib).ok());
  ASSERT_TRUE(memory_.make_room(5 * mib + 1).ok());
  EXPECT_EQ(memory_.size(), 5 * mib + 1);
  auto* const bytes = static_cast<char*>(memory_.data());
  const std::string text = "the last";
  EXPECT_TRUE(owner_.copy(bytes + memory_.size() - text.size(), text.data(), text.size()).ok());
}

TEST_P(transfer_memory_test, takes_what_is_too_long_for_the_memory_in_pieces) {
  ASSERT_TRUE(memory_.make_room(std::uint64_t{1} << 60).ok());
  EXPECT_EQ(memory_.size(), std::uint64_t{1} << 30);
}

INSTANTIATE_TEST_SUITE_P(of, transfer_memory_test, ::testing::Values("host", "host:0"),
                         [](const auto& test) { return std::string(test.param) == "host" ? "host" : "host_device"; });

}  // namespace
}  // namespace penstock::cli
