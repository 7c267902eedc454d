#include <gtest/gtest.h>

// The command is an executable, so its parser is compiled here again.
#include "cli/common/sizes.cc"  // NOLINT(bugprone-suspicious-include)

namespace penstock::cli {
namespace {

constexpr std::uint64_t kibi = 1024;

std::uint64_t parsed(std::string_view text) {
  const auto bytes = parse_size(text);
  EXPECT_TRUE(bytes.ok()) << text << ": " << bytes.error().message();
  return bytes.value_or(0);
}

TEST(sizes, a_bare_number_is_bytes) {
  EXPECT_EQ(parsed("0"), 0U);
  EXPECT_EQ(parsed("1"), 1U);
  EXPECT_EQ(parsed("4096"), 4096U);
  EXPECT_EQ(parsed("17B"), 17U);
}

TEST(sizes, binary_units_in_short_and_long_form) {
  EXPECT_EQ(parsed("4KiB"), 4 * kibi);
  EXPECT_EQ(parsed("4k"), 4 * kibi);
  EXPECT_EQ(parsed("4K"), 4 * kibi);
  EXPECT_EQ(parsed("1MiB"), kibi * kibi);
  EXPECT_EQ(parsed("1M"), kibi * kibi);
  EXPECT_EQ(parsed("4GiB"), 4 * kibi * kibi * kibi);
  EXPECT_EQ(parsed("2g"), 2 * kibi * kibi * kibi);
  EXPECT_EQ(parsed("1TiB"), kibi * kibi * kibi * kibi);
}

TEST(sizes, two_letter_units_are_decimal) {
  EXPECT_EQ(parsed("3KB"), 3'000U);
  EXPECT_EQ(parsed("3mb"), 3'000'000U);
  EXPECT_EQ(parsed("3GB"), 3'000'000'000U);
  EXPECT_EQ(parsed("3TB"), 3'000'000'000'000U);
}

TEST(sizes, parts_of_a_unit_are_exact_and_rounded_down_to_bytes) {
  EXPECT_EQ(parsed("1.5G"), 3 * kibi * kibi * kibi / 2);
  EXPECT_EQ(parsed("1.5GiB"), 3 * kibi * kibi * kibi / 2);
  EXPECT_EQ(parsed("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(parsed("0.1k"), 102U);
  EXPECT_EQ(parsed("0.999999999999999999999999999k"), 1023U);
  EXPECT_EQ(parsed("2.000T"), 2 * kibi * kibi * kibi * kibi);
  EXPECT_FALSE(parse_size("8388608.0T").ok());
  EXPECT_EQ(parsed("8388607.5T"), (8388607ULL << 40) + (1ULL << 39));
}

TEST(sizes, what_is_no_size_is_refused_and_named) {
  for (const std::string_view text :
       {"", "k", "-1", "+1", "4x", "4 KiB", " 4", "4KiBs", "1.5", "1.5B", "1.G", ".5G", "1.5.5G", "1,5G", "0x10", "4e3"}) {
    const auto bytes = parse_size(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(bytes.error().code(), errc::invalid_argument);
    EXPECT_NE(bytes.error().message().find(text), std::string_view::npos) << bytes.error().message();
  }
}

TEST(sizes, the_largest_file_offset_is_the_largest_size) {
  EXPECT_EQ(parsed("9223372036854775807"), 9223372036854775807ULL);
  EXPECT_EQ(parsed("8388607T"), 8388607ULL << 40);
  for (const std::string_view text :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616", "8388608T", "99999999999999999999k"}) {
    EXPECT_FALSE(parse_size(text).ok()) << text;
  }
}

TEST(sizes, formatted_with_the_largest_unit_that_fits) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1 KiB");
  EXPECT_EQ(format_size(1536), "1.5 KiB");
  EXPECT_EQ(format_size(kibi * kibi * kibi), "1 GiB");
  EXPECT_EQ(format_size(100 * kibi * kibi), "100 MiB");
  EXPECT_EQ(format_size(5 * kibi * kibi * kibi * kibi * kibi), "5120 TiB");
}

}  // namespace
}  // namespace penstock::cli
