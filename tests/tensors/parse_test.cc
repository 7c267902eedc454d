#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/tensors.hpp"
#include "tensors/tensor_files.hpp"

namespace penstock {
namespace {

using testing::entry;
using testing::parsed;

void expect_refused(const std::string& json, std::uint64_t data_bytes, const std::string& message) {
  const auto header = parsed(json, data_bytes);
  ASSERT_FALSE(header) << json;
  EXPECT_EQ(header.error().code(), errc::invalid_argument);
  EXPECT_EQ(header.error().message(), message) << json;
}

TEST(parse_safetensors, tells_what_is_in_a_file_and_where) {
  const std::string json = "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"\"}," + entry("b", "F32", "[2,3]", 6, 30) + "," +
                           entry("a", "BF16", "[3]", 0, 6) + "," + entry("scalar", "I64", "[]", 30, 38) + "}   ";
  const auto header = parsed(json, 38);
  ASSERT_TRUE(header) << header.error().message();
  const std::uint64_t begin = 8 + json.size();
  EXPECT_EQ(header->data_offset(), begin);
  const std::vector<tensor_facts> expected = {{"a", tensor_type::bf16, {3}, begin, 6},
                                              {"b", tensor_type::f32, {2, 3}, begin + 6, 24},
                                              {"scalar", tensor_type::i64, {}, begin + 30, 8}};
  EXPECT_EQ(header->tensors(), expected);
  EXPECT_EQ(header->metadata(), (tensor_metadata{{"format", "pt"}, {"by", ""}}));
  ASSERT_NE(header->find("b"), nullptr);
  EXPECT_EQ(*header->find("b"), expected[1]);
  EXPECT_EQ(header->find("c"), nullptr);
  EXPECT_EQ(header->find(""), nullptr);
}

TEST(parse_safetensors, takes_files_of_no_tensors) {
  for (const std::string json : {"{}", "{ }", "{\n\t\r }", "{}      ", "{\"__metadata__\":null}"}) {
    const auto header = parsed(json, 0);
    ASSERT_TRUE(header) << json << header.error().message();
    EXPECT_TRUE(header->tensors().empty());
    EXPECT_FALSE(header->metadata());
    EXPECT_EQ(header->find("x"), nullptr);
  }
  const auto header = parsed("{\"__metadata__\":{}}", 0);
  ASSERT_TRUE(header);
  EXPECT_TRUE(header->metadata() && header->metadata()->empty());
}

TEST(parse_safetensors, takes_tensors_without_bytes_wherever_they_lie) {
  const auto header =
      parsed("{" + entry("z", "F32", "[0]", 4, 4) + "," + entry("y", "F32", "[0,7]", 0, 0) + "," + entry("x", "F32", "[1]", 0, 4) + "}", 4);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->tensors()[0].name, "y");
  EXPECT_EQ(header->tensors()[1].name, "x");
  EXPECT_EQ(header->tensors()[2].name, "z");
}

TEST(parse_safetensors, takes_fields_in_any_order_with_spaces_between_them) {
  const auto header = parsed("{ \"a\" : {\n\"data_offsets\" : [ 0 , 4 ] ,\t\"shape\" : [ 1 ] , \"dtype\" :\r\"F32\" } }", 4);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->tensors()[0].bytes, 4U);
}

TEST(parse_safetensors, reads_names_in_any_script_escaped_or_not) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"", ""},
      {"weight é 層 😀 وزن", "weight é 層 😀 وزن"},
      {"\\u00e9\\u5c64\\uD83D\\uDe00", "é層😀"},
      {"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u001F\x7f", std::string("\"\\/\b\f\n\r\t\0\x1f\x7f", 11)},
      {"\\u005f_metadata_", "__metadata_"},
  };
  for (const auto& [written, meant] : names) {
    const auto header = parsed("{" + entry(written, "U8", "[1]", 0, 1) + "}", 1);
    ASSERT_TRUE(header) << written << header.error().message();
    EXPECT_EQ(header->tensors()[0].name, meant);
    EXPECT_NE(header->find(meant), nullptr);
  }
  // The format's own key may be escaped, too.
  const auto header = parsed("{\"\\u005f_metadata__\":{\"\\u0061\":\"\\u0062\"}}", 0);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->metadata(), (tensor_metadata{{"a", "b"}}));
}

TEST(parse_safetensors, refuses_what_is_no_object) {
  expect_refused("", 0, "at byte 0 of the header, a header must start with '{'");
  expect_refused(" {}", 0, "at byte 0 of the header, a header must start with '{'");
  expect_refused("\xef\xbb\xbf{}", 0, "at byte 0 of the header, a header must start with '{'");
  expect_refused("[]", 0, "at byte 0 of the header, a header must start with '{'");
  expect_refused("{", 0, "at byte 1 of the header, '\"' is missing");
  expect_refused("{}}", 0, "at byte 2 of the header, there is data after the final '}' of the header");
  expect_refused(std::string("{}\0", 3), 0, "at byte 2 of the header, there is data after the final '}' of the header");
  expect_refused("{}\xff", 0, "at byte 2 of the header, there is data after the final '}' of the header");
  expect_refused("{}\f", 0, "at byte 2 of the header, there is data after the final '}' of the header");
  expect_refused("{1:2}", 0, "at byte 1 of the header, '\"' is missing");
  expect_refused("{" + entry("a", "U8", "[1]", 0, 1) + ",}", 1, "at byte 53 of the header, '\"' is missing");
}

TEST(parse_safetensors, refuses_strings_that_are_none) {
  expect_refused("{\"a", 0, "at byte 3 of the header, a string is not terminated");
  expect_refused("{\"a\\", 0, "at byte 4 of the header, a string contains an invalid escape");
  expect_refused("{\"a\\\"", 0, "at byte 5 of the header, a string is not terminated");
  expect_refused("{\"a\x1f\":1}", 0, "at byte 3 of the header, a string contains a control character");
  expect_refused("{\"\\n\n\":1}", 0, "at byte 4 of the header, a string contains a control character");
  expect_refused("{\"\\q\":1}", 0, "at byte 4 of the header, a string contains an invalid escape");
  expect_refused("{\"\\u00g0\":1}", 0, "at byte 6 of the header, \\u must be followed by four hexadecimal digits");
  expect_refused("{\"\\u00", 0, "at byte 6 of the header, \\u must be followed by four hexadecimal digits");
  for (const std::string half : {"\\ud83d", "\\ude00", "\\ud83d\\u0041", "\\ud83d\\ud83d", "\\ud83dx"}) {
    const auto header = parsed("{" + entry(half, "U8", "[1]", 0, 1) + "}", 1);
    ASSERT_FALSE(header) << half;
    EXPECT_TRUE(header.error().message().ends_with("a string contains an unpaired surrogate")) << header.error().message();
  }
  // Cut off, in a longer form than needed, half of a surrogate pair, beyond Unicode.
  for (const std::string bytes : {"\xc3", "\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "x\\n\xc3"}) {
    const auto header = parsed("{" + entry(bytes, "U8", "[1]", 0, 1) + "}", 1);
    ASSERT_FALSE(header) << bytes;
    EXPECT_TRUE(header.error().message().ends_with("a string is not UTF-8")) << header.error().message();
  }
}

TEST(parse_safetensors, refuses_tensors_with_other_fields_than_theirs) {
  expect_refused("{\"a\":{}}", 0, "tensor \"a\": at byte 7 of the header, \"dtype\" is missing");
  expect_refused("{\"a\":{\"dtype\":\"U8\"}}", 0, "tensor \"a\": at byte 19 of the header, \"shape\" is missing");
  expect_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "tensor \"a\": at byte 30 of the header, \"data_offsets\" is missing");
  expect_refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "tensor \"a\": at byte 27 of the header, \"dtype\" appears twice");
  expect_refused("{\"a\":{\"shape\":[],\"shape\":[]}}", 0, "tensor \"a\": at byte 25 of the header, \"shape\" appears twice");
  expect_refused("{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", 0,
                 "tensor \"a\": at byte 42 of the header, \"data_offsets\" appears twice");
  expect_refused("{\"a\":{\"Shape\":[]}}", 0, "tensor \"a\": at byte 14 of the header, unknown tensor field \"Shape\"");
  expect_refused("{\"a\":[\"U8\",[],[0,1]]}", 1, "tensor \"a\": at byte 5 of the header, '{' is missing");
  expect_refused("{\"a\":null}", 0, "tensor \"a\": at byte 5 of the header, '{' is missing");
  expect_refused("{\"a\":{\"dtype\":8}}", 0, "tensor \"a\": at byte 14 of the header, '\"' is missing");
  expect_refused("{\"a\":{\"shape\":{}}}", 0, "tensor \"a\": at byte 14 of the header, '[' is missing");
  expect_refused("{\"a\":{\"data_offsets\":[0]}}", 0,
                 "tensor \"a\": at byte 24 of the header, \"data_offsets\" must contain two numbers, not 1");
  expect_refused("{\"a\":{\"data_offsets\":[0,1,2]}}", 0,
                 "tensor \"a\": at byte 28 of the header, \"data_offsets\" must contain two numbers, not 3");
  expect_refused("{" + entry("a", "F5", "[1]", 0, 1) + "}", 1, "tensor \"a\": at byte 18 of the header, unknown tensor type \"F5\"");
}

TEST(parse_safetensors, refuses_numbers_that_are_not_whole_or_do_not_fit) {
  for (const std::string number : {"-1", "-0", "1.0", "1e0", "1E2", "01", "00", "+1", "x", "\"1\"", "true", "null", "[1]", "{}", "NaN",
                                   "18446744073709551616", "99999999999999999999999"}) {
    const auto header = parsed("{" + entry("a", "U8", "[" + number + "]", 0, 1) + "}", 1);
    ASSERT_FALSE(header) << number;
    EXPECT_TRUE(header.error().message().ends_with("expected a whole number from 0 to 18446744073709551615")) << header.error().message();
    EXPECT_TRUE(header.error().message().starts_with("tensor \"a\": ")) << header.error().message();
  }
  expect_refused("{" + entry("a", "U8", "[1,]", 0, 1) + "}", 1,
                 "tensor \"a\": at byte 30 of the header, expected a whole number from 0 to 18446744073709551615");
}

TEST(parse_safetensors, refuses_metadata_other_than_strings) {
  for (const std::string value : {"1", "null", "true", "{}", "[]"}) {
    expect_refused("{\"__metadata__\":{\"k\":" + value + "}}", 0, "at byte 21 of the header, the metadata value of \"k\" is not a string");
  }
  expect_refused("{\"__metadata__\":\"x\"}", 0, "at byte 16 of the header, '{' is missing");
  expect_refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "at byte 34 of the header, \"__metadata__\" appears twice");
  expect_refused("{\"__metadata__\":null,\"__metadata__\":null}", 0, "at byte 36 of the header, \"__metadata__\" appears twice");
  expect_refused("{\"__metadata__\":{\"k\":\"1\",\"j\":\"2\",\"k\":\"1\"}}", 0, "the key \"k\" appears twice in the metadata");
}

TEST(parse_safetensors, refuses_names_that_come_twice) {
  const std::string a = entry("a", "U8", "[1]", 0, 1);
  expect_refused("{" + a + "," + a + "}", 1, "tensor \"a\" appears twice");
  expect_refused("{" + a + "," + entry("b", "U8", "[1]", 1, 2) + "," + entry("\\u0061", "U8", "[1]", 2, 3) + "}", 3,
                 "tensor \"a\" appears twice");
}

TEST(parse_safetensors, refuses_offsets_that_do_not_cover_the_file_once) {
  const std::string a = entry("a", "U8", "[4]", 0, 4);
  expect_refused("{" + entry("a", "U8", "[4]", 4, 0) + "}", 4,
                 "tensor \"a\": at byte 51 of the header, \"data_offsets\" start at 4 but end at 0");
  expect_refused("{" + entry("a", "U8", "[4]", 1, 5) + "}", 5,
                 "tensor \"a\" starts at 1: the 1 bytes before it do not belong to any tensor");
  expect_refused("{" + a + "," + entry("b", "U8", "[1]", 6, 7) + "}", 7,
                 "tensor \"b\" starts at 6: the 2 bytes before it do not belong to any tensor");
  expect_refused("{" + a + "," + entry("b", "U8", "[3]", 3, 6) + "}", 6,
                 "tensor \"b\" starts at 3, but tensor \"a\" ends at 4: they overlap");
  expect_refused("{" + a + "," + entry("b", "U8", "[0]", 2, 2) + "}", 4,
                 "tensor \"b\" starts at 2, but tensor \"a\" ends at 4: they overlap");
  expect_refused("{" + a + "}", 7, "the last 3 bytes of the file do not belong to any tensor");
  expect_refused("{}", 8, "the last 8 bytes of the file do not belong to any tensor");
  expect_refused("{" + a + "," + entry("b", "U8", "[4]", 4, 8) + "," + entry("c", "U8", "[4]", 8, 12) + "}", 7,
                 "tensor \"b\" ends at byte 8 of the tensor data, but the file contains only 7 bytes of it: the file is truncated");
}

TEST(parse_safetensors, refuses_shapes_that_do_not_fit_their_bytes) {
  expect_refused("{" + entry("a", "F32", "[2,3]", 0, 25) + "}", 25, "tensor \"a\": [2, 3] of F32 takes 24 bytes, but its offsets span 25");
  expect_refused("{" + entry("a", "F32", "[]", 0, 0) + "}", 0, "tensor \"a\": [] of F32 takes 4 bytes, but its offsets span 0");
  expect_refused("{" + entry("a", "F4", "[3]", 0, 2) + "}", 2,
                 "tensor \"a\", [3] of F4: its 12 bits of type F4 are not a whole number of bytes");
  expect_refused("{" + entry("a", "U8", "[4294967296,4294967296]", 0, 0) + "}", 0,
                 "tensor \"a\", [4294967296, 4294967296] of U8: its size in bits does not fit into 64 bits");
  expect_refused("{" + entry("a", "F64", "[18446744073709551615,18446744073709551615,0]", 0, 0) + "}", 0,
                 "tensor \"a\", [18446744073709551615, 18446744073709551615, 0] of F64: its size in bits does not fit into 64 bits");
}

TEST(parse_safetensors, refuses_offsets_whose_sum_would_wrap_around) {
  // The second begins where adding up wraps to 4; and a file that ends at the largest number.
  const std::uint64_t most = ~std::uint64_t{0};
  const auto header = parse_safetensors("{" + entry("a", "U8", "[" + std::to_string(most >> 3) + "]", 0, most >> 3) + "}", most);
  ASSERT_FALSE(header);
  EXPECT_TRUE(header.error().message().starts_with("the last ")) << header.error().message();
  expect_refused("{" + entry("a", "U8", "[4]", 0, 4) + "," + entry("b", "U8", "[0]", most, most) + "}", 4,
                 "tensor \"b\" starts at 18446744073709551615: the 18446744073709551611 bytes before it do not belong to any tensor");
}

TEST(parse_safetensors, shows_names_so_that_a_terminal_does_not_obey_them) {
  expect_refused("{" + entry("\\u001b[2J\\u0000", "U8", "[1]", 0, 2) + "}", 2,
                 "tensor \"?[2J?\": [1] of U8 takes 1 bytes, but its offsets span 2");
  const std::string endless(1000, 'n');
  expect_refused("{" + entry(endless, "U8", "[1]", 0, 2) + "}", 2,
                 "tensor \"" + endless.substr(0, 400) + "\"...: [1] of U8 takes 1 bytes, but its offsets span 2");
}

TEST(parse_safetensors, takes_no_stack_for_what_is_nested_deeply) {
  const std::string deep(10'000'000, '[');
  EXPECT_FALSE(parsed(deep, 0));
  EXPECT_FALSE(parsed("{\"a\":" + deep, 0));
  EXPECT_FALSE(parsed("{\"a\":{\"shape\":" + deep, 0));
  EXPECT_FALSE(parsed("{\"__metadata__\":{\"k\":" + deep, 0));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(parsed(objects, 0));
}

TEST(parse_safetensors, refuses_headers_longer_than_any_may_be) {
  std::string json(most_safetensors_header_bytes + 1, ' ');
  json[0] = '{';
  json[1] = '}';
  expect_refused(json, 0, "a header of 100000001 bytes is too long");
  json.pop_back();
  EXPECT_TRUE(parsed(json, 0));
}

TEST(parse_safetensors, refuses_a_header_that_does_not_fit_into_the_file) {
  EXPECT_EQ(parse_safetensors("{}", 9).error().message(), "a file of 9 bytes cannot contain a header of 2 bytes");
  EXPECT_TRUE(parse_safetensors("{}", 10));
}

TEST(safetensors_header_bytes, are_the_first_number_of_the_file) {
  const std::string beginning = testing::with_length("{}");
  EXPECT_EQ(safetensors_header_bytes(beginning, 10).value_or(0), 2U);
  EXPECT_EQ(safetensors_header_bytes(beginning, 9).error().message(),
            "a header of 2 bytes does not fit into a file of 9 bytes: the file is truncated");
  EXPECT_EQ(safetensors_header_bytes(beginning.substr(0, 7), 7).error().message(),
            "not a safetensors file: it is 7 bytes long, but the header length alone takes 8");
  EXPECT_EQ(safetensors_header_bytes("", 0).error().code(), errc::invalid_argument);
  std::string hundred_million("\x00\xe1\xf5\x05\x00\x00\x00\x00", 8);
  EXPECT_EQ(safetensors_header_bytes(hundred_million, 200'000'000).value_or(0), 100'000'000U);
  ++hundred_million[0];
  EXPECT_EQ(safetensors_header_bytes(hundred_million, 200'000'000).error().message(),
            "not a safetensors file: its first 8 bytes specify a header of 100000001 bytes, but the limit is 100000000");
  EXPECT_EQ(safetensors_header_bytes(std::string(8, '\xff'), 10).error().code(), errc::invalid_argument);
}

}  // namespace
}  // namespace penstock
