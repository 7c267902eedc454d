#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/tensors.hpp"

namespace penstock {
namespace {

TEST(tensor_types, have_the_names_that_files_use_and_are_found_by_them) {
  for (int i = 0; i < tensor_type_count; ++i) {
    const auto type = static_cast<tensor_type>(i);
    const auto found = parse_tensor_type(to_string(type));
    ASSERT_TRUE(found) << to_string(type);
    EXPECT_EQ(*found, type);
  }
  EXPECT_EQ(to_string(tensor_type::bf16), "BF16");
  EXPECT_EQ(to_string(tensor_type::boolean), "BOOL");
  EXPECT_EQ(to_string(tensor_type::f8_e5m2fnuz), "F8_E5M2FNUZ");
}

TEST(tensor_types, of_another_name_are_refused) {
  for (const std::string name : {"", "bf16", "BF16 ", "F128", "I4"}) {
    const auto found = parse_tensor_type(name);
    EXPECT_EQ(found.error().code(), errc::invalid_argument) << name;
    EXPECT_EQ(found.error().message(), "unknown tensor type \"" + name + "\"");
  }
  EXPECT_EQ(parse_tensor_type("F\x1b[2J").error().message(), "unknown tensor type \"F?[2J\"");
}

TEST(tensor_types, have_the_bits_that_their_names_say) {
  EXPECT_EQ(bits_of(tensor_type::f4), 4U);
  EXPECT_EQ(bits_of(tensor_type::f6_e2m3), 6U);
  EXPECT_EQ(bits_of(tensor_type::f6_e3m2), 6U);
  EXPECT_EQ(bits_of(tensor_type::boolean), 8U);
  EXPECT_EQ(bits_of(tensor_type::f8_e8m0), 8U);
  EXPECT_EQ(bits_of(tensor_type::bf16), 16U);
  EXPECT_EQ(bits_of(tensor_type::f32), 32U);
  EXPECT_EQ(bits_of(tensor_type::c64), 64U);
  EXPECT_EQ(bits_of(tensor_type::u64), 64U);
}

TEST(tensor_bytes, are_those_of_all_elements) {
  using shape = std::vector<std::uint64_t>;
  EXPECT_EQ(tensor_bytes(tensor_type::f32, shape{}).value_or(0), 4U);
  EXPECT_EQ(tensor_bytes(tensor_type::bf16, shape{3, 5}).value_or(0), 30U);
  EXPECT_EQ(tensor_bytes(tensor_type::bf16, shape{3, 0, 5}).value_or(1), 0U);
  EXPECT_EQ(tensor_bytes(tensor_type::f4, shape{2, 3}).value_or(0), 3U);
  EXPECT_EQ(tensor_bytes(tensor_type::f6_e2m3, shape{4}).value_or(0), 3U);
  EXPECT_EQ(tensor_bytes(tensor_type::u8, shape{std::uint64_t{1} << 60}).value_or(0), std::uint64_t{1} << 60);
}

TEST(tensor_bytes, that_nothing_can_have_are_refused) {
  using shape = std::vector<std::uint64_t>;
  EXPECT_EQ(tensor_bytes(tensor_type::f4, shape{3}).error().message(), "its 12 bits of type F4 are not a whole number of bytes");
  EXPECT_EQ(tensor_bytes(tensor_type::f6_e3m2, shape{2}).error().message(), "its 12 bits of type F6_E3M2 are not a whole number of bytes");
  const std::string too_large = "its size in bits does not fit into 64 bits";
  EXPECT_EQ(tensor_bytes(tensor_type::u8, shape{std::uint64_t{1} << 61}).error().message(), too_large);
  EXPECT_EQ(tensor_bytes(tensor_type::u8, shape{~std::uint64_t{0}, ~std::uint64_t{0}, 0}).error().message(), too_large);
}

}  // namespace
}  // namespace penstock
