// GGUF files: their contents, what is rejected, long headers, and models in several files.
#include "penstock/gguf.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"
#include "support/engines.hpp"
#include "support/gguf_files.hpp"
#include "support/temp_dir.hpp"

namespace penstock::gguf_test {
namespace {

using namespace test_files;
using words = std::vector<std::string>;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void expect_refused(const std::string& beginning, std::uint64_t file_bytes, std::string_view why) {
  const auto header = parse_gguf(beginning, file_bytes);
  ASSERT_FALSE(header) << why;
  EXPECT_EQ(header.error().code(), errc::invalid_argument);
  EXPECT_TRUE(contains(header.error().message(), why)) << header.error().message();
}
void expect_refused(const std::string& file, std::string_view why) { expect_refused(file, file.size(), why); }

// Of one tensor, whose bytes are there.
void expect_tensor_refused(const std::string& info, std::string_view why) {
  expect_refused(gguf_file(gguf_beginning({}, {info}), std::string(1024, 'x')), why);
}

// A value of each type, by type: its bytes in a file.
const words value_of_each_type = {gguf_number(std::uint8_t{200}),
                                  gguf_number(std::int8_t{-3}),
                                  gguf_number(std::uint16_t{60'000}),
                                  gguf_number(std::int16_t{-5}),
                                  gguf_number(std::uint32_t{4'000'000'000}),
                                  gguf_number(std::int32_t{-7}),
                                  gguf_number(0.5F),
                                  gguf_number(std::uint8_t{1}),
                                  gguf_string("é"),
                                  gguf_items(0, {"\x01", "\x02"}),
                                  gguf_number(std::numeric_limits<std::uint64_t>::max()),
                                  gguf_number(std::numeric_limits<std::int64_t>::min()),
                                  gguf_number(0.1)};

TEST(parse_gguf, tells_metadata_of_every_type) {
  words pairs;
  for (std::uint32_t type = 0; type < value_of_each_type.size(); ++type) {
    pairs.push_back(gguf_pair("one." + std::to_string(type), type, value_of_each_type[type]));
    pairs.push_back(gguf_pair("two." + std::to_string(type), 9, gguf_items(type, {value_of_each_type[type], value_of_each_type[type]})));
    pairs.push_back(gguf_pair("none." + std::to_string(type), 9, gguf_items(type, {})));
  }
  const std::string file = gguf_beginning(pairs, {});
  const auto header = parse_gguf(file, file.size());
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->version, 3);
  EXPECT_EQ(header->alignment, 32);
  ASSERT_EQ(header->metadata.size(), 39);
  EXPECT_EQ(std::get<std::uint8_t>(*header->find("one.0")), 200);
  EXPECT_EQ(std::get<std::int8_t>(*header->find("one.1")), -3);
  EXPECT_EQ(std::get<std::uint16_t>(*header->find("one.2")), 60'000);
  EXPECT_EQ(std::get<std::int16_t>(*header->find("one.3")), -5);
  EXPECT_EQ(std::get<std::uint32_t>(*header->find("one.4")), 4'000'000'000);
  EXPECT_EQ(std::get<std::int32_t>(*header->find("one.5")), -7);
  EXPECT_EQ(std::get<float>(*header->find("one.6")), 0.5F);
  EXPECT_EQ(std::get<bool>(*header->find("one.7")), true);
  EXPECT_EQ(std::get<std::string>(*header->find("one.8")), "é");
  EXPECT_EQ(std::get<std::uint64_t>(*header->find("one.10")), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(std::get<std::int64_t>(*header->find("one.11")), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(std::get<double>(*header->find("one.12")), 0.1);
  for (std::size_t type = 0; type < value_of_each_type.size(); ++type) {
    const auto& two = std::get<gguf_array>(*header->find("two." + std::to_string(type)));
    EXPECT_EQ(two.type(), static_cast<gguf_value_type>(type));
    EXPECT_EQ(two.size(), 2);
    const auto& none = std::get<gguf_array>(*header->find("none." + std::to_string(type)));
    EXPECT_EQ(none.type(), static_cast<gguf_value_type>(type));
    EXPECT_EQ(none.size(), 0);
  }
  const auto& nested = std::get<std::vector<gguf_array>>(std::get<gguf_array>(*header->find("two.9")).items);
  EXPECT_EQ(std::get<std::vector<std::uint8_t>>(nested[1].items), (std::vector<std::uint8_t>{1, 2}));
  EXPECT_EQ(header->find("three"), nullptr);
}

TEST(parse_gguf, tells_tensors_in_the_order_of_their_bytes) {
  const std::string beginning =
      gguf_beginning({gguf_u32("general.alignment", 64)},
                     {gguf_tensor_info("q", {64, 3}, 2, 64), gguf_tensor_info("w", {3, 2}, 0, 0), gguf_tensor_info("one", {}, 28, 192)}, 2);
  const std::string file = gguf_file(beginning, std::string(200, 'x'), 64);
  const auto header = parse_gguf(file, file.size());
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->version, 2);
  const std::uint64_t begin = file.size() - 200;
  EXPECT_EQ(header->tensors.data_offset(), begin);
  const std::vector<tensor_facts> expected = {{"w", tensor_type::f32, {2, 3}, begin, 24},
                                              {"q", tensor_type::u8, {3, 36}, begin + 64, 108},
                                              {"one", tensor_type::f64, {}, begin + 192, 8}};
  EXPECT_EQ(header->tensors.tensors(), expected);
  EXPECT_EQ(header->elements[1].type->name, "Q4_0");
  EXPECT_EQ(header->elements[1].shape, (std::vector<std::uint64_t>{3, 64}));
}

TEST(parse_gguf, reads_every_type_of_elements) {
  for (const ggml_type& type : ggml_types()) {
    const std::string info = gguf_tensor_info("t", {2 * type.block_elements, 2}, type.number, 0);
    const std::string file = gguf_file(gguf_beginning({}, {info}), std::string(std::size_t{4} * type.block_bytes, 'x'));
    const auto header = parse_gguf(file, file.size());
    ASSERT_TRUE(header) << type.name << header.error().message();
    EXPECT_EQ(header->tensors.tensors()[0].bytes, std::uint64_t{4} * type.block_bytes) << type.name;
    EXPECT_EQ(header->elements[0].type, find_ggml_type(type.number));
    EXPECT_EQ(type.plain.has_value(), type.block_elements == 1) << type.name;
    EXPECT_EQ(type.plain ? bits_of(*type.plain) / 8 : type.block_bytes, type.block_bytes) << type.name;
  }
}

TEST(parse_gguf, needs_no_padding_behind_the_last_tensor_and_none_without_tensors) {
  EXPECT_TRUE(parse_gguf(gguf_beginning({}, {}), 24));
  const std::string info = gguf_tensor_info("t", {1}, 24, 0);
  const std::string file = gguf_file(gguf_beginning({}, {info}), "x");
  EXPECT_TRUE(parse_gguf(file, file.size()));
  expect_refused(file, file.size() - 1, "its 1 bytes at offset 0 extend past the 0 bytes of tensor data in the file");
}

// --- what is refused

TEST(parse_gguf, refuses_what_is_none_and_versions_that_are_not_read) {
  expect_refused("", "a GGUF file must start with \"GGUF\"");
  expect_refused("GGUg" + std::string(100, '\0'), "a GGUF file must start with \"GGUF\"");
  expect_refused(gguf_beginning({}, {}, 1), "version 1 has been obsolete since 2023");
  expect_refused(gguf_beginning({}, {}, 0x03000000), "this is a big-endian GGUF file");
  expect_refused(gguf_beginning({}, {}, 4), "version 4 is not supported: only versions 2 and 3 are");
  expect_refused(gguf_beginning({}, {}, 0), "version 0 is not supported: only versions 2 and 3 are");
}

TEST(parse_gguf, refuses_a_header_that_is_cut_anywhere) {
  const std::string file = gguf_beginning({gguf_text("a", "b"), gguf_pair("c", 9, gguf_items(9, {gguf_items(5, {gguf_number(1)})}))},
                                          {gguf_tensor_info("empty", {0, 4}, 0, 0)});
  ASSERT_TRUE(parse_gguf(file, file.size()));
  for (std::size_t length = 0; length < file.size(); ++length) {
    const auto cut = parse_gguf(file.substr(0, length), length);
    ASSERT_FALSE(cut) << length;
    EXPECT_EQ(cut.error().code(), errc::invalid_argument);
    const auto beginning = parse_gguf(file.substr(0, length), file.size());
    ASSERT_FALSE(beginning) << length;
    EXPECT_EQ(contains(beginning.error().message(), "the header does not end within the first"), length >= 4)
        << beginning.error().message();
  }
}

TEST(parse_gguf, believes_no_number_that_the_file_has_no_room_for) {
  constexpr std::uint64_t many = std::uint64_t{1} << 60, all = ~std::uint64_t{0};
  for (const std::uint64_t count : {many, all}) {
    const std::string counts = "GGUF" + gguf_number(std::uint32_t{3}) + gguf_number(count) + gguf_number(std::uint64_t{0});
    expect_refused(counts, "tensors do not fit into a file of 24 bytes");
    expect_refused("GGUF" + gguf_number(std::uint32_t{3}) + gguf_number(std::uint64_t{0}) + gguf_number(count), "keys do not fit");
    expect_refused(gguf_beginning({gguf_number(count) + std::string(100, 'k')}, {}), "more bytes are needed");
    expect_refused(gguf_beginning({gguf_pair("k", 8, gguf_number(count))}, {}), "the key \"k\": at byte ");
    for (std::uint32_t type = 0; type < gguf_value_type_count; ++type) {
      const std::string array = gguf_number(type) + gguf_number(count);
      expect_refused(gguf_beginning({gguf_pair("k", 9, array)}, {}), "items do not fit");
      expect_refused(gguf_beginning({gguf_pair("k", 9, array)}, {}), std::uint64_t{1} << 62, "items do not fit");
    }
  }
  const std::string dimensions = gguf_string("t") + gguf_number(std::uint32_t{9});
  expect_refused(gguf_beginning({}, {dimensions + std::string(100, '\0')}), "tensor \"t\": at byte 37: 9 dimensions exceed the limit of 8");
  expect_refused(gguf_beginning({gguf_pair(std::string(most_gguf_key_bytes + 1, 'k'), 0, "x")}, {}), "a key of 65536 bytes is too long");
}

TEST(parse_gguf, refuses_types_of_metadata_that_are_not_known) {
  expect_refused(gguf_beginning({gguf_pair("k", 13, "x")}, {}), "the key \"k\": at byte 37: unknown metadata type 13");
  expect_refused(gguf_beginning({gguf_pair("k", 9, gguf_items(13, {}))}, {}), "unknown metadata type 13");
}

TEST(parse_gguf, refuses_arrays_that_are_nested_too_deep) {
  const auto nested = [](int depth) {
    std::string value = gguf_items(0, {"x"});
    for (int i = 1; i < depth; ++i) value = gguf_items(9, {value});
    return gguf_beginning({gguf_pair("k", 9, value)}, {});
  };
  EXPECT_TRUE(parse_gguf(nested(most_gguf_array_depth), nested(most_gguf_array_depth).size()));
  expect_refused(nested(most_gguf_array_depth + 1), "arrays are nested deeper than 8");
  expect_refused(nested(10'000), "arrays are nested deeper than 8");
}

TEST(parse_gguf, refuses_names_and_keys_that_come_twice_or_are_no_text) {
  expect_refused(gguf_beginning({gguf_u32("k", 1), gguf_u32("k", 1)}, {}), "the key \"k\" appears twice in the metadata");
  expect_refused(gguf_beginning({gguf_u32("\xff", 1)}, {}), "the key \"?\" is not UTF-8");
  expect_refused(gguf_beginning({}, {gguf_tensor_info("t", {0}, 0, 0), gguf_tensor_info("t", {0}, 0, 0)}), "tensor \"t\" appears twice");
  expect_tensor_refused(gguf_tensor_info("\xff", {1}, 0, 0), "the name of tensor \"?\" is not UTF-8");
}

TEST(parse_gguf, refuses_alignments_that_are_none) {
  for (const std::uint32_t alignment : {0U, 3U, 48U, ~0U})
    expect_refused(gguf_beginning({gguf_u32("general.alignment", alignment)}, {}),
                   "general.alignment is " + std::to_string(alignment) + ", which is not a power of two");
  expect_refused(gguf_beginning({gguf_text("general.alignment", "32")}, {}), "general.alignment is of type string, not u32");
  const std::string widest = gguf_beginning({gguf_u32("general.alignment", 1U << 31)}, {});
  EXPECT_TRUE(parse_gguf(widest, widest.size()));
}

TEST(parse_gguf, refuses_tensors_that_do_not_fit) {
  expect_tensor_refused(gguf_tensor_info("t", {1}, 0, 16), "its offset 16 in the tensor data is not a multiple of the alignment, 32");
  expect_tensor_refused(gguf_tensor_info("t", {257}, 0, 0),
                        "its 1028 bytes at offset 0 extend past the 1024 bytes of tensor data in the file");
  expect_tensor_refused(gguf_tensor_info("t", {1}, 0, 1024), "the file is truncated");
  expect_tensor_refused(gguf_tensor_info("t", {1}, 0, ~std::uint64_t{31}), "the file is truncated");
  expect_tensor_refused(gguf_tensor_info("t", {16}, 2, 0),
                        "its rows of 16 elements are not a multiple of the 32-element blocks of type Q4_0");
  expect_tensor_refused(gguf_tensor_info("t", {}, 12, 0), "its rows of 1 elements are not a multiple of the 256-element blocks");
  constexpr std::uint64_t wide = std::uint64_t{1} << 32;
  expect_tensor_refused(gguf_tensor_info("t", {wide, wide}, 0, 0), "its size in bits does not fit into 64 bits");
  expect_tensor_refused(gguf_tensor_info("t", {~std::uint64_t{31}}, 9, 0), "the size of its rows does not fit into 64 bits");
  expect_tensor_refused(gguf_tensor_info("t", {256, wide, wide}, 12, 0), "its size in bits does not fit into 64 bits");
}

TEST(parse_gguf, refuses_tensors_that_share_bytes) {
  const auto two = [](std::uint64_t second) {
    return gguf_file(gguf_beginning({}, {gguf_tensor_info("b", {8}, 0, second), gguf_tensor_info("a", {9}, 0, 0)}), std::string(1024, 'x'));
  };
  expect_refused(two(32), "tensor \"b\" starts at 32, but tensor \"a\" ends at 36: they overlap");
  expect_refused(two(0), "they overlap");
  EXPECT_TRUE(parse_gguf(two(64), two(64).size()));
}

// --- files

class gguf_files : public ::testing::Test {
 protected:
  std::string store(const std::string& name, const std::string& content) const {
    std::string path = directory_.file(name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  result<gguf_header> read(const std::string& path) const {
    const auto file = engine_.open(path);
    return file ? read_gguf(*file) : file.error();
  }
  // One of several files of a model.
  std::string store_split(const std::string& name, std::uint16_t number, std::uint16_t count, const std::string& tensor) const {
    const words pairs = {gguf_u16("split.no", number), gguf_u16("split.count", count)};
    return store(name, gguf_file(gguf_beginning(pairs, {gguf_tensor_info(tensor, {8}, 24, 0)}), "bytes of" + tensor));
  }
  penstock::testing::temp_dir directory_;
  engine engine_ = penstock::testing::made_engine(penstock::testing::without_cuda());
};

TEST_F(gguf_files, long_headers_are_read_in_pieces) {
  words tokens;
  for (int i = 0; i < 200'000; ++i) tokens.push_back(gguf_string("token " + std::to_string(i)));
  const std::string beginning = gguf_beginning({gguf_pair("tokens", 9, gguf_items(8, tokens))}, {gguf_tensor_info("t", {8}, 24, 0)});
  const auto header = read(store("long.gguf", gguf_file(beginning, "12345678")));
  ASSERT_TRUE(header) << header.error().message();
  const auto& read_tokens = std::get<std::vector<std::string>>(std::get<gguf_array>(*header->find("tokens")).items);
  EXPECT_EQ(read_tokens.size(), 200'000);
  EXPECT_EQ(read_tokens.back(), "token 199999");
  EXPECT_EQ(header->tensors.tensors()[0].bytes, 8);
}

TEST_F(gguf_files, errors_name_the_file_and_what_stands_in_its_place) {
  const std::string cut = store("cut.gguf", gguf_beginning({}, {gguf_tensor_info("t", {8}, 24, 0)}));
  EXPECT_TRUE(read(cut).error().message().starts_with(cut + ": tensor \"t\": its 8 bytes")) << read(cut).error().message();
  EXPECT_TRUE(contains(read(store("lfs", "version https://git-lfs.github.com/spec/v1\n")).error().message(), "is a git-lfs pointer"));
  EXPECT_TRUE(contains(read(store("page", "<!DOCTYPE html>")).error().message(), "is an HTML page, not a GGUF file"));
  const std::string model = store("model.gguf", gguf_beginning({}, {}));
  const auto file = engine_.open(model);
  ASSERT_TRUE(file);
  EXPECT_TRUE(is_gguf(*file));
  EXPECT_EQ(read_safetensors(*file).error().message(), model + " is a GGUF file, not a safetensors file");
}

TEST_F(gguf_files, a_model_in_several_files_is_found_by_any_of_them) {
  const std::string first = store_split("m-00001-of-00002.gguf", 0, 2, "one"), second = store_split("m-00002-of-00002.gguf", 1, 2, "two");
  EXPECT_EQ(*gguf_files_of(second), (words{first, second}));
  EXPECT_EQ(gguf_files_of("nowhere/m-00001-of-00001.gguf").error().code(), errc::not_found);
  for (const char* name : {"m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-0001-of-00002.gguf", "m-00001-of-00002.bin",
                           "-1-of-2.gguf", "m-+0001-of-00002.gguf"})
    EXPECT_EQ(*gguf_files_of(name), words{name});
  for (const std::string& each : {first, second}) {
    const auto opened = model::open(engine_, {each});
    ASSERT_TRUE(opened) << opened.error().message();
    EXPECT_EQ(opened->files().size(), 2);
    EXPECT_EQ(opened->files()[1].kind, model_file_kind::gguf);
    EXPECT_EQ(opened->tensor_count(), 2);
    const auto layout = lay_out(*opened);
    ASSERT_TRUE(layout);
    std::string memory(layout->bytes, '\0');
    void* const there = memory.data();
    ASSERT_TRUE(load_model(engine_, *layout, {&there, 1}).ok());
    EXPECT_EQ(memory.substr(layout->tensors[1].place, 8), "bytes of");
  }
}

TEST_F(gguf_files, a_model_that_lacks_files_or_has_others_is_refused) {
  const std::string first = store_split("m-00001-of-00003.gguf", 0, 3, "one");
  const auto lacking = model::open(engine_, {first});
  ASSERT_FALSE(lacking);
  EXPECT_EQ(lacking.error().code(), errc::not_found);
  EXPECT_TRUE(contains(lacking.error().message(), "m-00002-of-00003.gguf\", \"")) << lacking.error().message();
  store_split("m-00002-of-00003.gguf", 2, 3, "two");
  store_split("m-00003-of-00003.gguf", 1, 3, "three");
  EXPECT_TRUE(contains(model::open(engine_, {first}).error().message(), "says that this is file 3 of 3 of a model, not 2 of 3"));
  store_split("m-00002-of-00003.gguf", 1, 3, "two");
  store_split("m-00003-of-00003.gguf", 2, 3, "one");
  EXPECT_TRUE(contains(model::open(engine_, {first}).error().message(), "these tensors are in two files: \"one\""));
}

TEST_F(gguf_files, a_part_of_a_model_under_another_name_is_refused) {
  const std::string first = store_split("first", 0, 2, "one"), second = store_split("second.gguf", 1, 2, "two");
  for (const std::string& each : {first, second}) {
    const auto refused = model::open(engine_, {each});
    ASSERT_FALSE(refused) << each;
    EXPECT_EQ(refused.error().code(), errc::invalid_argument);
    EXPECT_TRUE(refused.error().message().starts_with(each + ": the metadata says that this is file ")) << refused.error().message();
    EXPECT_TRUE(contains(refused.error().message(), "NAME-00001-of-00002.gguf")) << refused.error().message();
  }
  EXPECT_EQ(model::open(engine_, {second, first})->tensor_count(), 2) << "all parts together are the model";
  EXPECT_FALSE(model::open(engine_, {first, store_split("again", 0, 2, "three")}));
  EXPECT_TRUE(model::open(engine_, {store_split("joined", 0, 0, "one")})) << "as llama-gguf-split --merge leaves it";
}

TEST_F(gguf_files, the_number_of_tensors_that_the_metadata_promises_is_checked) {
  const auto store_counted = [&](const std::string& name, std::uint16_t number, std::uint16_t count, std::uint32_t tensors) {
    const words pairs = {gguf_u16("split.no", number), gguf_u16("split.count", count), gguf_u32("split.tensors.count", tensors)};
    const std::string tensor = gguf_tensor_info("t" + std::to_string(number), {8}, 24, 0);
    return store(name, gguf_file(gguf_beginning(pairs, {tensor}), "12345678"));
  };
  struct {
    std::uint16_t files;
    std::uint16_t count;
    std::uint32_t tensors;
    bool is_whole;
  } const table[] = {{2, 2, 2, true}, {2, 2, 3, false}, {2, 2, 1, false}, {1, 1, 1, true}, {1, 1, 2, false}, {1, 0, 9, true}};
  for (const auto& row : table) {
    std::string path;
    for (std::uint16_t i = 0; i < row.files; ++i)
      path = store_counted("m-0000" + std::to_string(i + 1) + "-of-0000" + std::to_string(row.files) + ".gguf", i, row.count, row.tensors);
    const auto opened = model::open(engine_, {path});
    EXPECT_EQ(opened.ok(), row.is_whole) << row.count << " files of " << row.tensors;
    if (!row.is_whole) {
      EXPECT_TRUE(contains(opened.error().message(), "says that the model has " + std::to_string(row.tensors) + " tensors"));
    }
  }
}

TEST_F(gguf_files, files_of_a_model_at_a_url_have_its_query) {
  EXPECT_EQ(*gguf_files_of("https://h/m-00002-of-00002.gguf?t=1"),
            (words{"https://h/m-00001-of-00002.gguf?t=1", "https://h/m-00002-of-00002.gguf?t=1"}));
}

TEST_F(gguf_files, a_tensor_of_an_unknown_type_hides_only_itself) {
  const words tensors = {gguf_tensor_info("a", {8}, 24, 0), gguf_tensor_info("new", {64, 2}, 42, 32), gguf_tensor_info("b", {4}, 24, 64)};
  const std::string path = store("m.gguf", gguf_file(gguf_beginning({gguf_u32("k", 7)}, tensors), std::string(68, 'x')));
  const auto header = read(path);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_TRUE(header->find("k"));
  EXPECT_EQ(header->tensors.tensors().size(), 2);
  EXPECT_EQ(header->tensor_count(), 3);
  ASSERT_EQ(header->unknown.size(), 1);
  EXPECT_EQ(header->unknown[0].name, "new");
  EXPECT_EQ(header->unknown[0].type, 42);
  EXPECT_EQ(header->unknown[0].shape, (std::vector<std::uint64_t>{2, 64}));
  EXPECT_EQ(header->unknown[0].offset, header->tensors.data_offset() + 32);
  EXPECT_EQ(model::open(engine_, {path})->files()[0].unknown.size(), 1);
  const auto with = [&](const std::string& info) {
    return parse_gguf(gguf_file(gguf_beginning({}, {tensors[0], info}), std::string(64, 'x')), 1 << 20);
  };
  for (const std::uint32_t type : {4U, 5U, 31U, 36U, 42U, ~0U})
    EXPECT_EQ(with(gguf_tensor_info("c", {8}, type, 32))->unknown.size(), 1) << type;
  EXPECT_TRUE(contains(with(gguf_tensor_info("c", {8}, 99, 0)).error().message(), "they overlap"));
  EXPECT_TRUE(contains(with(gguf_tensor_info("a", {8}, 99, 32)).error().message(), "appears twice"));
  EXPECT_TRUE(contains(with(gguf_tensor_info("c", {8}, 99, std::uint64_t{1} << 40)).error().message(), "tensor \"c\""));
}

}  // namespace
}  // namespace penstock::gguf_test
