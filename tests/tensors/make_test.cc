#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "penstock/tensors.hpp"
#include "tensors/tensor_files.hpp"

namespace penstock {
namespace {

using testing::with_length;

void expect_unfit(std::vector<tensor_facts> tensors, const std::string& message) {
  const std::vector<tensor_facts> before = tensors;
  const auto made = make_safetensors(tensors);
  ASSERT_FALSE(made) << message;
  EXPECT_EQ(made.error().code(), errc::invalid_argument);
  EXPECT_EQ(made.error().message(), message);
  EXPECT_EQ(tensors, before);
}

TEST(make_safetensors, writes_what_the_formats_own_library_writes) {
  std::vector<tensor_facts> tensors = {
      {"b", tensor_type::f32, {1}}, {"a\t\u2028", tensor_type::u8, {0}}, {"é", tensor_type::f32, {}}, {"Z", tensor_type::f32, {2, 0}}};
  // Written by safetensors 0.8 from the same tensors.
  const std::string expected =
      R"({"__metadata__":{"k":"v\n\u0001)"
      "\x7f"
      R"(/\"\\é"},"Z":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("é":{"dtype":"F32","shape":[],"data_offsets":[4,8]},"a\t)"
      "\u2028"
      R"(":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}    )";
  const auto made = make_safetensors(tensors, tensor_metadata{{"k", "v\n\x01\x7f/\"\\é"}});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(*made, with_length(expected));
  EXPECT_EQ(tensors[0].name, "Z");
  EXPECT_EQ(tensors[2].offset, made->size() + 4);
  EXPECT_EQ(tensors[2].bytes, 4U);
}

TEST(make_safetensors, writes_files_of_no_tensors) {
  std::vector<tensor_facts> none;
  EXPECT_EQ(make_safetensors(none).value_or(""), with_length("{}      "));
  EXPECT_EQ(make_safetensors(none, tensor_metadata{}).value_or(""), with_length("{\"__metadata__\":{}}     "));
}

TEST(make_safetensors, sorts_by_type_the_longest_elements_first_then_by_name) {
  std::vector<tensor_facts> tensors;
  for (int i = 0; i < tensor_type_count; ++i) {
    tensors.push_back({"b" + std::to_string(i), static_cast<tensor_type>(i), {8}});
    tensors.push_back({"a" + std::to_string(i), static_cast<tensor_type>(i), {8}});
  }
  ASSERT_TRUE(make_safetensors(tensors));
  std::string order;
  for (std::size_t i = 0; i < tensors.size(); i += 2) {
    order += std::string(to_string(tensors[i].type)) + " ";
    EXPECT_EQ(tensors[i].name[0], 'a');
    EXPECT_EQ(tensors[i + 1].name[0], 'b');
  }
  EXPECT_EQ(order,
            "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 F6_E3M2 F6_E2M3 F4 BOOL ");
}

TEST(make_safetensors, refuses_what_no_file_can_hold) {
  expect_unfit({{"a", tensor_type::u8, {1}}, {"b", tensor_type::f32, {1}}, {"a", tensor_type::f32, {1}}}, "tensor \"a\" appears twice");
  expect_unfit({{"__metadata__", tensor_type::u8, {1}}}, "\"__metadata__\" is reserved and cannot be a tensor name");
  expect_unfit({{"a\xff", tensor_type::u8, {1}}}, "the name of tensor \"a?\" is not UTF-8");
  expect_unfit({{"a", tensor_type::f4, {1}}}, "tensor \"a\": its 4 bits of type F4 are not a whole number of bytes");
  const std::uint64_t half = std::uint64_t{1} << 60;
  expect_unfit({{"a", tensor_type::u8, {half * 2}}}, "tensor \"a\": its size in bits does not fit into 64 bits");
  std::vector<tensor_facts> many(8, {"", tensor_type::u8, {half}});
  for (std::size_t i = 0; i < many.size(); ++i) many[i].name = std::to_string(i);
  expect_unfit(many, "tensor \"7\" would extend past the largest file offset");
  // All of them fit, but not behind a header.
  many[7].shape = {half - 1};
  expect_unfit(many, "tensor \"7\" would extend past the largest file offset");
  many[7].shape = {half - 4096};
  EXPECT_TRUE(make_safetensors(many));
}

TEST(make_safetensors, refuses_metadata_that_no_header_can_hold) {
  std::vector<tensor_facts> none;
  EXPECT_EQ(make_safetensors(none, tensor_metadata{{"k", "1"}, {"k", "1"}}).error().message(),
            "the key \"k\" appears twice in the metadata");
  EXPECT_EQ(make_safetensors(none, tensor_metadata{{"k", "\xff"}}).error().message(), "the metadata key \"k\" or its value is not UTF-8");
  EXPECT_EQ(make_safetensors(none, tensor_metadata{{"k\xff", ""}}).error().message(), "the metadata key \"k?\" or its value is not UTF-8");
}

TEST(make_safetensors, refuses_headers_that_nobody_would_read) {
  std::vector<tensor_facts> none;
  const auto made = make_safetensors(none, tensor_metadata{{"k", std::string(most_safetensors_header_bytes, 'x')}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message(), "the header for 0 tensors would be larger than the safetensors limit of 100000000 bytes");
}

// What is written is read again, as it was.
void expect_read_again(std::vector<tensor_facts> tensors, const std::optional<tensor_metadata>& metadata) {
  const auto made = make_safetensors(tensors, metadata);
  ASSERT_TRUE(made) << made.error().message();
  ASSERT_EQ(made->size() % 8, 0U);
  const std::uint64_t file_bytes = tensors.empty() ? made->size() : tensors.back().offset + tensors.back().bytes;
  const auto length = safetensors_header_bytes(*made, file_bytes);
  ASSERT_TRUE(length) << length.error().message();
  ASSERT_EQ(*length, made->size() - 8);
  const auto header = parse_safetensors(std::string_view(*made).substr(8), file_bytes);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->metadata(), metadata);
  EXPECT_EQ(header->data_offset(), made->size());
  ASSERT_EQ(header->tensors().size(), tensors.size());
  for (const tensor_facts& each : tensors) {
    const tensor_facts* found = header->find(each.name);
    ASSERT_NE(found, nullptr) << each.name;
    EXPECT_EQ(*found, each);
  }
}

TEST(make_safetensors, writes_what_is_read_again) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (std::size_t round = 0; round < 300; ++round) {
    std::optional<tensor_metadata> metadata;
    if (round % 3 > 0) {
      metadata.emplace();
      for (std::size_t i = 0; i < round % 5; ++i)
        metadata->emplace_back(testing::random_name(random) + std::to_string(i), testing::random_name(random));
    }
    expect_read_again(testing::random_tensors(random() % 40, random), metadata);
  }
  expect_read_again({}, std::nullopt);
  expect_read_again(testing::random_tensors(10'000, random), std::nullopt);
}

// Bytes of a header that are changed, left out or doubled give a file that is refused, or one that is whole.
TEST(make_safetensors, and_what_is_damaged_is_never_half_understood) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    auto tensors = testing::random_tensors(1 + random() % 4, random);
    const auto made = make_safetensors(tensors);
    ASSERT_TRUE(made);
    std::string json = made->substr(8);
    const std::size_t at = random() % json.size();
    if (random() % 3 == 0) {
      json.erase(at, 1 + random() % 3);
    } else if (random() % 2 == 0) {
      json.insert(at, json.substr(random() % json.size(), 1 + random() % 3));
    } else {
      json[at] = static_cast<char>(random());
    }
    const std::uint64_t data_bytes = tensors.back().offset + tensors.back().bytes - made->size();
    const auto header = testing::parsed(json, data_bytes);
    if (!header) {
      ASSERT_FALSE(header.error().message().empty());
      continue;
    }
    std::uint64_t end = header->data_offset();
    for (const tensor_facts& each : header->tensors()) {
      ASSERT_EQ(each.offset, end);
      ASSERT_EQ(each.bytes, tensor_bytes(each.type, each.shape).value_or(~each.bytes));
      end += each.bytes;
    }
    ASSERT_EQ(end, header->data_offset() + data_bytes);
  }
}

}  // namespace
}  // namespace penstock
