#include "sys/library_folders.hpp"

#include <gtest/gtest.h>

namespace penstock::sys {
namespace {

TEST(library_folders_test, are_those_of_the_processor) {
  EXPECT_EQ(toolkit_folders("/t", "x86_64"), (std::vector<std::string>{"/t/lib64", "/t/targets/x86_64-linux/lib"}));
  EXPECT_EQ(toolkit_folders("/t", "aarch64"),
            (std::vector<std::string>{"/t/lib64", "/t/targets/sbsa-linux/lib", "/t/targets/aarch64-linux/lib"}));
  EXPECT_EQ(distribution_folders("aarch64").front(), "/usr/lib/aarch64-linux-gnu");
}

}  // namespace
}  // namespace penstock::sys
