// Models: indexes, the files of a folder, promised and present tensors, layouts, and loading.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"
#include "support/zip_files.hpp"
#include "tensors/model_files.hpp"

namespace penstock {
namespace {

// --- indexes as text

TEST(model_index, tells_tensors_and_files_in_its_order) {
  const auto index = parse_model_index(map_of(R"("b": "two", "a": "sub/one.safetensors", "\u00e9\"": "two")"));
  ASSERT_TRUE(index) << index.error().message();
  const std::vector<indexed_tensor> expected = {{"b", "two"}, {"a", "sub/one.safetensors"}, {"é\"", "two"}};
  EXPECT_EQ(*index, expected);
  EXPECT_TRUE(parse_model_index(map_of("")));
  EXPECT_TRUE(
      parse_model_index(R"( {"x": [1, -2.5e+3, true, false, null, {"y": []}, 0, ""], "weight_map": {"a": "..b/c..", "d": ".e"}} )"));
}

TEST(model_index, refuses_what_is_no_json_and_says_where) {
  for (const std::string text :
       {"", "{", "[1, 2", "{\"a\": 01}", "{\"a\": 1.}", "{\"a\": -}", "{\"a\": tru}", "{\"a\" 1}", "{\"a\": \"\x01\"}", "{\"a\": \"\\q\"}",
        "{} x", "{\"weight_map\": {\"a\": \"b\"}", "{\"a\": 1,}", "<html>", "version https://git-lfs"}) {
    const auto index = parse_model_index(text);
    ASSERT_FALSE(index) << text;
    EXPECT_EQ(index.error().code(), errc::invalid_argument);
    EXPECT_TRUE(index.error().message().starts_with("the index is not valid JSON: at byte ")) << index.error().message();
  }
}

TEST(model_index, refuses_what_is_nested_too_deep) {
  const auto nested = [](std::size_t depth) {
    return R"({"weight_map": {}, "x": )" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(parse_model_index(nested(most_model_index_depth - 1)));
  for (const std::size_t depth : {std::size_t{most_model_index_depth}, std::size_t{10'000'000}})
    EXPECT_TRUE(contains(parse_model_index(nested(depth)).error().message(), "the nesting is too deep"));
  EXPECT_TRUE(contains(parse_model_index(std::string(1'000'000, '[')).error().message(), "the nesting is too deep"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  EXPECT_TRUE(contains(parse_model_index(objects).error().message(), "the nesting is too deep"));
}

TEST(model_index, refuses_json_that_is_no_index) {
  for (const char* text : {"[]", "{}", "1", R"({"weight_map": []})", R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": null}})"})
    EXPECT_EQ(parse_model_index(text).error().message(), "the index has no \"weight_map\" that maps tensors to files") << text;
  EXPECT_EQ(parse_model_index(map_of(R"("a": "x", "b": "x", "a": "y")")).error().message(), "tensor \"a\" appears twice in the index");
  EXPECT_EQ(parse_model_index(R"({"weight_map": {}, "weight_map": {}})").error().message(), "\"weight_map\" appears twice in the index");
}

TEST(model_index, files_of_an_index_at_a_url_lie_below_its_last_slash_and_have_its_query) {
  const std::vector<indexed_tensor> index = {{"a", "one.safetensors"}, {"b", "sub/two%3f?#.safetensors"}};
  const auto files = [&](std::string_view at) { return shards_of(index, at)->files; };
  EXPECT_EQ(files("https://h:1/m/model.safetensors.index.json?t=a/b"),
            (words{"https://h:1/m/one.safetensors?t=a/b", "https://h:1/m/sub/two%253f%3F%23.safetensors?t=a/b"}));
  EXPECT_EQ(files("s3://bucket/m?/x.json"), (words{"s3://bucket/m?/one.safetensors", "s3://bucket/m?/sub/two%3f?#.safetensors"}));
  EXPECT_TRUE(check_shards(*shards_of(index, "s3://bucket/x.json"), "s3://bucket/x.json").ok()) << "no server is asked";
}

TEST(model_index, a_url_is_one_by_what_stands_before_its_query) {
  EXPECT_TRUE(is_model_index("https://h/x.json?token=1"));
  EXPECT_FALSE(is_model_index("https://h/x?y=.json"));
  EXPECT_TRUE(is_model_index("s3://bucket/x?y=.json"));
  EXPECT_FALSE(is_model_index("x.json?token=1"));
}

TEST(model_index, refuses_files_outside_of_its_folder) {
  for (const char* name : {"", "/etc/passwd", "..", "../x", "a/../../x", "a/..", R"(a\u0000b)", "/"}) {
    const auto index = parse_model_index(map_of(R"("a": ")" + std::string(name) + "\""));
    ASSERT_FALSE(index) << name;
    EXPECT_TRUE(index.error().message().starts_with("the index assigns tensor \"a\" to ")) << index.error().message();
    EXPECT_TRUE(index.error().message().ends_with(", which is not a file in the index's folder")) << index.error().message();
  }
}

TEST(model_index, names_of_other_files_than_the_paths_are_refused) {
  const std::vector<std::vector<std::string_view>> names = {{"a"}};
  EXPECT_EQ(check_tensors({{"one", "two"}, {}}, names).code(), errc::invalid_argument);
  EXPECT_EQ(check_tensors({{"one"}, {{"a", 1}}}, names).code(), errc::invalid_argument);
  EXPECT_TRUE(check_tensors({{"one"}, {{"a", 0}}}, names).ok());
}

// --- files

TEST_F(model_files_test, a_folder_is_its_index_else_its_one_file) {
  expect_refused({folder_}, errc::not_found, "the folder contains neither model.safetensors.index.json nor model.safetensors");
  store_shards();
  expect_refused({folder_}, errc::not_found, "the folder contains neither");
  store_tensors("model.safetensors", {{"single", tensor_type::u8, {1}}});
  EXPECT_TRUE(good({folder_}).find("single"));
  const std::string index = store_index(R"("a": "one.safetensors", "c": "sub/two.safetensors")");
  for (const std::string& path : {folder_, index}) {
    const model from = good({path});
    ASSERT_EQ(from.files().size(), 2U);
    EXPECT_EQ(from.files()[0].path, directory_.file("one.safetensors"));
    EXPECT_EQ(from.files()[1].path, directory_.file("sub/two.safetensors"));
    EXPECT_EQ(from.tensor_count(), 2U);
    EXPECT_EQ(from.tensor_bytes(), 5U + 8U);
    EXPECT_FALSE(from.find("single"));
    EXPECT_FALSE(from.find("b")) << "which the index does not name";
    ASSERT_TRUE(from.find("c"));
    EXPECT_EQ(from.find("c")->file, &from.files()[1]);
    EXPECT_EQ(from.find("c")->facts->shape, (std::vector<std::uint64_t>{4}));
  }
}

TEST_F(model_files_test, what_is_named_twice_counts_once) {
  store_shards();
  const std::string one = directory_.file("one.safetensors");
  const std::string index = store_index(R"("a": "one.safetensors", "c": "sub/two.safetensors")");
  EXPECT_EQ(good({one, one}).files().size(), 1U);
  EXPECT_EQ(good({one, index, folder_}).files().size(), 2U);
  EXPECT_EQ(good({}).tensor_count(), 0U);
}

TEST_F(model_files_test, a_tensor_in_two_files_is_an_error_that_names_both) {
  const std::string one = store_tensors("one", {{"a", tensor_type::u8, {1}}, {"b", tensor_type::u8, {1}}});
  const std::string two = store_tensors("two", {{"b", tensor_type::u8, {1}}, {"c", tensor_type::u8, {1}}});
  expect_refused({one, two}, errc::invalid_argument, "these tensors are in two files: \"b\" in " + one + " and " + two);
  std::vector<tensor_facts> many;
  for (int i = 100; i < 125; ++i) many.push_back({std::to_string(i), tensor_type::u8, {1}});
  const auto refused = opened({store_tensors("three", many), store_tensors("four", many)});
  EXPECT_TRUE(contains(refused.error().message(), "\"119\" in ")) << refused.error().message();
  EXPECT_FALSE(contains(refused.error().message(), "\"120\" in "));
  EXPECT_TRUE(refused.error().message().ends_with(" and 5 more"));
}

TEST_F(model_files_test, an_index_decides_which_file_a_tensor_is_read_from) {
  store_tensors("one", {{"a", tensor_type::u8, {3}}, {"b", tensor_type::u8, {7}}, {"old", tensor_type::u8, {5}}});
  store_tensors("two", {{"b", tensor_type::u8, {2}}});
  const model from = good({store_index(R"("a": "one", "b": "two")")});
  EXPECT_EQ(from.tensor_count(), 2U);
  EXPECT_EQ(from.find("b")->file, &from.files()[1]);
  EXPECT_EQ(from.files()[0].header.tensors().size(), 1U);
  const auto layout = lay_out(from);
  ASSERT_TRUE(layout);
  std::string memory(layout->bytes, '\0');
  void* const there = memory.data();
  ASSERT_TRUE(load_model(engine_, *layout, {&there, 1}).ok());
  EXPECT_EQ(memory.substr(layout->tensors[1].place, 2), bytes_["b"]);
}

TEST_F(model_files_test, shards_that_are_not_there_are_named) {
  store_shards();
  const std::string index = store_index(R"("x": "three", "a": "one.safetensors", "y": "four")");
  expect_refused({folder_}, errc::not_found,
                 index + ": missing shards: \"" + directory_.file("four") + "\", \"" + directory_.file("three") + "\"");
}

TEST_F(model_files_test, promises_that_are_not_kept_name_the_tensors_and_the_shard) {
  store_shards();
  store_index(R"("z": "sub/two.safetensors", "a": "one.safetensors", "c": "one.safetensors", "y": "sub/two.safetensors")");
  expect_refused({folder_}, errc::not_found,
                 "tensors listed in the index are missing: " + directory_.file("sub/two.safetensors") + " lacks \"z\", \"y\"; " +
                     directory_.file("one.safetensors") + " lacks \"c\"");
  std::string many;
  for (int i = 0; i < 30; ++i) many += (many.empty() ? "\"" : ", \"") + std::to_string(i) + R"(": "one.safetensors")";
  store_index(many);
  expect_refused({folder_}, errc::not_found, "\"19\" and 10 more");
}

TEST_F(model_files_test, an_index_has_a_bound_and_is_a_file) {
  const std::string index = store_index("");
  std::filesystem::resize_file(index, most_model_index_bytes + 1);
  expect_refused({folder_}, errc::invalid_argument, index + " is larger than 100000000 bytes");
  std::filesystem::remove(index);
  ASSERT_EQ(mkfifo(index.c_str(), 0600), 0);
  expect_refused({folder_}, errc::not_a_file, index);
  std::filesystem::remove(index);
  std::filesystem::create_directory(index);
  expect_refused({folder_}, errc::not_a_file, index);
  expect_refused({directory_.file("none.json")}, errc::not_found, "none.json");
}

TEST_F(model_files_test, names_the_file_that_is_no_model) {
  expect_refused({store("bad.json", "{")}, errc::invalid_argument,
                 directory_.file("bad.json") + ": the index is not valid JSON: at byte 1 of the index");
  expect_refused({store("bad", "not one")}, errc::invalid_argument,
                 directory_.file("bad") + ": not a safetensors file: it is 7 bytes long");
  expect_refused({store("lfs", "version https://git-lfs.github.com/spec/v1\n")}, errc::invalid_argument, "is a git-lfs pointer");
  expect_refused({store("page", "<!doctype html><html>")}, errc::invalid_argument, "is an HTML page");
  expect_refused({directory_.file("none")}, errc::not_found, directory_.file("none"));
}

TEST_F(model_files_test, of_a_checkpoint_it_tells_the_storages) {
  const std::string path =
      store("m.pt", test_files::zip_of({{"m/data.pkl", "pickle"}, {"m/data/0", "abcde"}, {"m/version", "3"}, {"m/data/1", "xy"}}, false));
  const model from = good({path, store("n.pt", test_files::zip_of({{"m/data.pkl", "pickle"}, {"m/data/0", "other"}}, false))});
  EXPECT_EQ(from.files()[0].kind, model_file_kind::checkpoint);
  EXPECT_EQ(from.tensor_count(), 3U);
  ASSERT_TRUE(from.find("m/data/1"));
  std::string read(2, ' ');
  const auto [file, facts] = *from.find("m/data/1");
  EXPECT_EQ(file->source.read(read.data(), 2, static_cast<std::int64_t>(facts->offset)).bytes_done, 2U);
  EXPECT_EQ(read, "xy");
  expect_refused({store("x.zip", test_files::zip_of({{"a", "b"}}, false))}, errc::invalid_argument, "does not contain data.pkl");
}

// --- layouts

using layout_test = model_files_test;

TEST_F(layout_test, tensors_follow_each_other_at_multiples_of_256) {
  store_shards();
  const model from = good({directory_.file("one.safetensors"), directory_.file("sub/two.safetensors")});
  const auto all = lay_out(from);
  ASSERT_TRUE(all) << all.error().message();
  std::vector<std::string> names;
  std::vector<std::uint64_t> places;
  for (const placed_tensor& each : all->tensors) {
    names.push_back(each.tensor.facts->name);
    places.push_back(each.place);
    EXPECT_EQ(each.part.bytes(), each.tensor.facts->bytes);
    EXPECT_EQ(each.part.shape, each.tensor.facts->shape);
  }
  EXPECT_EQ(names, (words{"b", "a", "c", "none"}));
  EXPECT_EQ(places, (std::vector<std::uint64_t>{0, 256, 512, 768}));
  EXPECT_EQ(all->bytes, 768U);
  EXPECT_EQ(lay_out(from, {.alignment = 1})->bytes, 37U);
}

TEST_F(layout_test, takes_some_names_and_names_those_that_are_not_there) {
  store_shards();
  const model from = good({directory_.file("one.safetensors"), directory_.file("sub/two.safetensors")});
  const auto some = lay_out(from, {.names = words{"c", "a", "a"}});
  ASSERT_TRUE(some) << some.error().message();
  ASSERT_EQ(some->tensors.size(), 2U);
  EXPECT_EQ(some->tensors[0].tensor.facts->name, "a");
  EXPECT_EQ(some->bytes, 512U);
  EXPECT_TRUE(lay_out(from, {.names = words{}})->tensors.empty());
  const auto refused = lay_out(from, {.names = words{"a", "x", "y"}});
  EXPECT_EQ(refused.error().code(), errc::not_found);
  EXPECT_EQ(refused.error().message(), "no file of the model contains \"x\", \"y\"");
}

TEST_F(layout_test, refuses_what_makes_no_sense) {
  store_shards();
  const model from = good({directory_.file("one.safetensors")});
  for (const std::uint64_t alignment : {std::uint64_t{0}, std::uint64_t{24}, std::uint64_t{1} << 63})
    EXPECT_EQ(lay_out(from, {.alignment = alignment}).error().code(), errc::invalid_argument) << alignment;
  EXPECT_EQ(lay_out(from, {.rank = {2, 2}}).error().code(), errc::invalid_argument);
  EXPECT_EQ(lay_out(from, {.rank = {0, 0}}).error().code(), errc::invalid_argument);
  const auto odd = lay_out(from, {.rank = {0, 4}, .dimension = [](const tensor_facts&) { return 0; }});
  EXPECT_TRUE(contains(odd.error().message(), "tensor \"b\" of shape [2, 3]: 2 rows of dimension 0 cannot be divided evenly among 4"))
      << odd.error().message();
  const auto both = lay_out(
      from, {.dimension = [](const tensor_facts&) { return 0; }, .selection = [](const tensor_facts&) { return tensor_selection(); }});
  EXPECT_EQ(both.error().message(), "selection and dimension exclude each other: set only one of them");
  EXPECT_EQ(ranges_of(*lay_out(from), 0).error().code(), errc::invalid_argument);
}

// --- loading

TEST_F(load_model_test, every_memory_gets_every_byte) {
  store_tensors("one.safetensors", {{"large", tensor_type::u8, {(33 << 20) + 5}}, {"b", tensor_type::f32, {7, 3}}});
  store_tensors("two.safetensors", {{"c", tensor_type::bf16, {129}}, {"none", tensor_type::u8, {0}}});
  store_index(R"("large": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors", "none": "two.safetensors")");
  const model from = good({folder_});
  const auto layout = lay_out(from);
  ASSERT_TRUE(layout);
  const auto ranges = ranges_of(*layout);
  ASSERT_TRUE(ranges);
  EXPECT_EQ(ranges->size(), 4U) << "the large one in two";
  const device_buffer one = memory_of(*layout), other = memory_of(*layout);
  void* const both[] = {one.data(), other.data()};
  const auto requests = requests_of(*ranges, both);
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 8U);
  EXPECT_FALSE((*requests)[3].copy_of);
  EXPECT_EQ((*requests)[5].copy_of, 1U);
  const status error = load_model(engine_, *layout, both);
  ASSERT_TRUE(error.ok()) << error.message();
  expect_all(*layout, one);
  expect_all(*layout, other);
}

TEST_F(load_model_test, a_rank_gets_its_parts) {
  const std::string path =
      store_tensors("m", {{"rows", tensor_type::f32, {4, 6}}, {"columns", tensor_type::f32, {4, 6}}, {"all", tensor_type::u8, {3}}});
  const model from = good({path});
  for (unsigned rank = 0; rank < 2; ++rank) {
    const auto dimension = [](const tensor_facts& tensor) {
      return tensor.name == "all" ? std::nullopt : std::optional<int>(tensor.name == "rows" ? 0 : 1);
    };
    const auto layout = lay_out(from, {.rank = {rank, 2}, .dimension = dimension});
    ASSERT_TRUE(layout) << layout.error().message();
    const device_buffer memory = memory_of(*layout);
    void* const there = memory.data();
    ASSERT_TRUE(load_model(engine_, *layout, {&there, 1}).ok());
    expect_all(*layout, memory);
  }
}

TEST_F(load_model_test, any_part_of_each_tensor_is_loaded) {
  const model from = good({store_tensors("m", {{"a", tensor_type::f32, {5, 4, 6}}, {"b", tensor_type::u8, {100}}})});
  const auto selection = [](const tensor_facts& tensor) {
    return tensor.name == "a" ? tensor_selection{index_range{.first = 1, .step = 2}, index_range{0, 3}, model_rank{1, 2}}
                              : tensor_selection();
  };
  const auto layout = lay_out(from, {.selection = selection});
  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_EQ(layout->tensors[0].part.shape, (std::vector<std::uint64_t>{2, 3, 3}));
  EXPECT_EQ(ranges_of(*layout)->size(), 7U) << "a run in each of six rows, and all of b";
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  ASSERT_TRUE(load_model(engine_, *layout, {&there, 1}).ok());
  expect_all(*layout, memory);
}

TEST_F(load_model_test, a_file_that_was_cut_meanwhile_is_an_error_that_names_the_tensor) {
  const std::string path = store_tensors("m", {{"a", tensor_type::u8, {1000}}, {"b", tensor_type::u8, {1000}}});
  const model from = good({path});
  const auto layout = lay_out(from);
  std::filesystem::resize_file(path, from.files()[0].file_bytes - 1);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  const status error = load_model(engine_, *layout, {&there, 1});
  EXPECT_EQ(error.code(), errc::io);
  EXPECT_EQ(error.message(), path + ": tensor \"b\": the file was truncated after it was opened");
}

TEST_F(load_model_test, an_empty_model_is_loaded_at_once) {
  const model none = good({});
  const auto layout = lay_out(none);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->bytes, 0U);
  void* const there = nullptr;
  EXPECT_TRUE(load_model(engine_, *layout, {&there, 1}).ok());
  EXPECT_TRUE(load_model(engine_, *layout, {}).ok());
}

TEST_F(load_model_test, a_watch_sees_what_arrives_in_each_memory) {
  const model from = good({store_tensors("m", {{"large", tensor_type::u8, {(33 << 20) + 5}}, {"b", tensor_type::f32, {7, 3}}})});
  const auto layout = lay_out(from);
  ASSERT_TRUE(layout);
  const device_buffer one = memory_of(*layout), other = memory_of(*layout);
  void* const both[] = {one.data(), other.data()};
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<load_progress> seen;
    load_watch watch;
    watch.proceed = [&](std::span<const load_progress> arrived) {
      for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_LE(seen[i].bytes, arrived[i].bytes);
      seen.assign(arrived.begin(), arrived.end());
      return true;
    };
    const status error = load_model(engine_, *layout, both, {}, watch);
    ASSERT_TRUE(error.ok()) << error.message();
    ASSERT_EQ(seen.size(), 2U);
    for (const load_progress& each : seen) {
      EXPECT_EQ(each.bytes, from.tensor_bytes());
      EXPECT_GT(each.time.count(), 0);
    }
    expect_all(*layout, other);
  }
}

TEST_F(load_model_test, an_error_contains_the_name_of_the_memory) {
  const std::string path = store_tensors("m", {{"a", tensor_type::u8, {1000}}});
  const model from = good({path});
  const auto layout = lay_out(from);
  std::filesystem::resize_file(path, from.files()[0].file_bytes - 1);
  const device_buffer memory = memory_of(*layout);
  void* const there = memory.data();
  load_watch watch;
  watch.names = {"host:0"};
  EXPECT_EQ(load_model(engine_, *layout, {&there, 1}, {}, watch).message(),
            "to host:0: " + path + ": tensor \"a\": the file was truncated after it was opened");
  watch.names = {"host:0", "host:0"};
  EXPECT_EQ(load_model(engine_, *layout, {&there, 1}, {}, watch).code(), errc::invalid_argument);
}

}  // namespace
}  // namespace penstock
