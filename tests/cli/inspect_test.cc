// penstock inspect.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "penstock/tensors.hpp"
#include "support/gguf_files.hpp"
#include "support/pickles.hpp"
#include "support/zip_files.hpp"

namespace penstock::cli_test {
namespace {

using nlohmann::json;
using test_files::zip_of;
using words = std::vector<std::string>;

ended_program inspect(words arguments) {
  arguments.insert(arguments.begin(), "inspect");
  return run(arguments);
}

class inspect_test : public ::testing::Test {
 protected:
  std::string store(const std::string& name, const std::string& content) const {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // Of these tensors, all zeros.
  std::string store_tensors(const std::string& name, std::vector<tensor_facts> tensors,
                            const std::optional<tensor_metadata>& metadata = std::nullopt) const {
    const auto beginning = make_safetensors(tensors, metadata);
    EXPECT_TRUE(beginning.ok());
    return store(name, *beginning + std::string(tensors.back().offset + tensors.back().bytes - beginning->size(), '\0'));
  }
  scratch_directory directory_;
};

TEST_F(inspect_test, tells_tensors_and_totals) {
  const std::string path =
      store_tensors("m.safetensors", {{"w", tensor_type::bf16, {2, 3}}, {"b", tensor_type::f32, {512}}, {"層", tensor_type::f32, {}}},
                    tensor_metadata{{"format", "pt\x1b[2J"}});
  const auto ended = inspect({path});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, path + ": safetensors, 3 tensors, ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "  format = pt?[2J\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "F32                2 tensors, 2 KiB")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "BF16         w [2, 3]\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "F32          層 []\n")) << ended.out;
  EXPECT_LT(ended.out.find(" b ["), ended.out.find(" 層 ["));
  EXPECT_LT(ended.out.find(" 層 ["), ended.out.find(" w ["));
}

TEST_F(inspect_test, tells_the_same_as_json) {
  const std::string path =
      store_tensors("m.safetensors", {{"w", tensor_type::bf16, {2, 3}}, {"b", tensor_type::f32, {512}}}, tensor_metadata{{"k", "v"}});
  const auto ended = inspect({path, "--json", "--sort", "name"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json told = json::parse(ended.out).at(0);
  EXPECT_EQ(told["file"], path);
  EXPECT_EQ(told["kind"], "safetensors");
  EXPECT_EQ(told["bytes"], std::filesystem::file_size(path));
  EXPECT_EQ(told["metadata"], json({{"k", "v"}}));
  EXPECT_EQ(told["by_type"], json({{"BF16", {{"bytes", 12}, {"count", 1}}}, {"F32", {{"bytes", 2048}, {"count", 1}}}}));
  const std::uint64_t begin = told["data_offset"];
  ASSERT_EQ(told["tensors"].size(), 2U);
  EXPECT_EQ(told["tensors"][0]["name"], "b");
  EXPECT_EQ(told["tensors"][1], json({{"name", "w"},
                                      {"type", "BF16"},
                                      {"shape", {2, 3}},
                                      {"offset", begin + 2048},
                                      {"bytes", 12},
                                      {"aligned_to", told["tensors"][1]["aligned_to"]}}));
  const std::uint64_t aligned = told["tensors"][1]["aligned_to"];
  EXPECT_EQ((begin + 2048) % aligned, 0U);
  EXPECT_TRUE(aligned == 4096 || (begin + 2048) % (2 * aligned) != 0);
  const auto totals = inspect({path, "--json", "--totals"});
  EXPECT_FALSE(json::parse(totals.out).at(0).contains("tensors"));
}

TEST_F(inspect_test, tells_gguf_files_with_ggml_types_and_shapes_of_elements) {
  using namespace test_files;
  const words numbers(101, gguf_number(std::uint8_t{7}));
  const std::string beginning = gguf_beginning(
      {gguf_text("general.architecture", "llama\x1b[2J"), gguf_text("template", std::string(119, 'x') + "é"), gguf_u32("count", 3),
       gguf_pair("few", 9, gguf_items(8, {gguf_string("a"), gguf_string("b")})), gguf_pair("many", 9, gguf_items(0, numbers))},
      {gguf_tensor_info("w", {256, 2}, 12, 0), gguf_tensor_info("b", {3}, 30, 288)});
  const std::string path = store("m.gguf", gguf_file(beginning, std::string(300, 'x')));
  const auto ended = inspect({path});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, path + ": gguf, 2 tensors, ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "  general.architecture = llama?[2J\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "  template = " + std::string(119, 'x') + "... (121 bytes)\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "  few = [a, b]\n") && contains(ended.out, "  many = 101 u8s\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "Q4_K         w [2, 256]\n") && contains(ended.out, "BF16         b [3]\n")) << ended.out;
  const json told = json::parse(inspect({path, "--json"}).out).at(0);
  EXPECT_EQ(told["kind"], "gguf");
  EXPECT_EQ(told["version"], 3);
  EXPECT_EQ(told["alignment"], 32);
  EXPECT_EQ(told["metadata"]["count"], 3);
  EXPECT_EQ(told["metadata"]["few"], json({"a", "b"}));
  EXPECT_EQ(told["metadata"]["many"], json({{"type", "u8"}, {"count", 101}}));
  EXPECT_EQ(told["by_type"]["Q4_K"], json({{"bytes", 288}, {"count", 1}}));
  EXPECT_EQ(told["tensors"][0]["shape"], json({2, 256}));
  EXPECT_EQ(told["tensors"][0]["bytes"], 288);
}

TEST_F(inspect_test, tells_all_gguf_files_of_a_model_and_what_does_not_hold_together) {
  using namespace test_files;
  const auto store_one = [&](const std::string& name, std::uint16_t number, const std::string& tensor) {
    const words pairs = {gguf_u16("split.no", number), gguf_u16("split.count", 2)};
    return store(name, gguf_file(gguf_beginning(pairs, {gguf_tensor_info(tensor, {4}, 24, 0)}), "1234"));
  };
  const std::string first = store_one("m-00001-of-00002.gguf", 0, "a");
  const auto lacking = inspect({first});
  EXPECT_EQ(lacking.exit_code, 1);
  EXPECT_TRUE(contains(lacking.err, "other shards of this model are missing: \"")) << lacking.err;
  const std::string second = store_one("m-00002-of-00002.gguf", 1, "b");
  const auto whole = inspect({second});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(contains(whole.out, second + ": model of 2 files\n" + first + ": gguf, 1 tensor")) << whole.out;
  EXPECT_TRUE(contains(whole.out, second + ": gguf, 1 tensor")) << whole.out;
  store_one("m-00002-of-00002.gguf", 1, "a");
  EXPECT_TRUE(contains(inspect({first}).err, "these tensors are in two files: \"a\"")) << inspect({first}).err;
  store_one("m-00002-of-00002.gguf", 0, "b");
  EXPECT_TRUE(contains(inspect({first}).err, "says that this is file 1 of 2 of a model, not 2 of 2"));
}

TEST_F(inspect_test, a_part_of_a_gguf_model_under_another_name_fails) {
  using namespace test_files;
  const words pairs = {gguf_u16("split.no", 0), gguf_u16("split.count", 2)};
  const words tensors = {gguf_tensor_info("a", {4}, 24, 0), gguf_tensor_info("b", {64}, 42, 32)};
  const auto ended = inspect({store("part", gguf_file(gguf_beginning(pairs, tensors), std::string(64, 'x')))});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "says that this is file 1 of 2 of a model")) << ended.err;
  EXPECT_TRUE(contains(ended.out, "not loadable: b [64] at ")) << ended.out;
}

TEST_F(inspect_test, sorts_by_size) {
  const std::string path = store_tensors(
      "m.safetensors", {{"small", tensor_type::u64, {1}}, {"large", tensor_type::u8, {99}}, {"middle", tensor_type::f32, {5}}});
  const auto ended = inspect({path, "--sort", "bytes"});
  ASSERT_EQ(ended.exit_code, 0);
  EXPECT_LT(ended.out.find("large"), ended.out.find("middle"));
  EXPECT_LT(ended.out.find("middle"), ended.out.find("small"));
  EXPECT_EQ(inspect({path, "--sort", "colour"}).exit_code, 2);
}

TEST_F(inspect_test, tells_members_of_checkpoints) {
  for (const bool wide : {false, true}) {
    const std::string content =
        zip_of({{"archive/data.pkl", "pickle"}, {"archive/data/0", std::string(3000, 'x')}}, wide, wide ? "" : "a comment");
    const std::string path = store("model.pt", content);
    const auto ended = inspect({path, "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const json told = json::parse(ended.out).at(0);
    EXPECT_EQ(told["kind"], "zip");
    ASSERT_EQ(told["members"].size(), 2U);
    EXPECT_EQ(told["members"][1]["name"], "archive/data/0");
    EXPECT_EQ(told["members"][1]["bytes"], 3000);
    EXPECT_EQ(told["members"][1]["type"], "stored");
    const std::size_t offset = told["members"][1]["offset"];
    EXPECT_EQ(content.substr(offset, 3000), std::string(3000, 'x'));
  }
  EXPECT_EQ(json::parse(inspect({store("empty.pt", zip_of({}, false)), "--json"}).out).at(0)["members"].size(), 0U);
}

TEST_F(inspect_test, tells_tensors_of_checkpoints_or_why_it_does_not) {
  using test_files::checkpoint_of, test_files::pickle_of, test_files::pickled_dict, test_files::pickled_tensor_of;
  const std::string content = checkpoint_of(
      pickle_of(pickled_dict({{"model", pickled_dict({{"w", pickled_tensor_of({"0", 2, {1, 2}, {2, 1}})}})}, {"step", "K\x05"}})),
      {"12345678"});
  const std::string path = store("model.pt", content);
  const auto ended = inspect({path});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, path + ": checkpoint, 1 tensor, ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "  not a tensor: step (int)\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "F32          model.w [1, 2]\n")) << ended.out;
  const json told = json::parse(inspect({path, "--json"}).out).at(0);
  EXPECT_EQ(told["others"], json::array({{{"name", "step"}, {"kind", "int"}}}));
  EXPECT_EQ(content.substr(told["tensors"][0]["offset"], 8), "12345678");
  const std::string other = store("other.pt", checkpoint_of(pickle_of(test_files::pickled_name("os\nsystem") + ")R"), {"12345678"}));
  const auto members = inspect({other});
  EXPECT_EQ(members.exit_code, 0) << members.err;
  EXPECT_TRUE(contains(members.out, other + ": zip, 3 members, ")) << members.out;
  EXPECT_TRUE(contains(members.out, "cannot read its tensors: ") && contains(members.out, "unsupported global os.system")) << members.out;
  EXPECT_TRUE(contains(json::parse(inspect({other, "--json"}).out).at(0)["unread"].get<std::string>(), "os.system"));
}

TEST_F(inspect_test, refuses_checkpoints_whose_storages_are_missing_or_short) {
  using test_files::checkpoint_of, test_files::pickle_of, test_files::pickled_dict, test_files::pickled_tensor_of;
  const std::string pickle = pickle_of(pickled_dict({{"w", pickled_tensor_of({"0", 2, {2}, {1}})}}));
  for (const std::vector<std::string>& storages : {std::vector<std::string>{}, {""}, {"1234567"}}) {
    const auto ended = inspect({store("model.pt", checkpoint_of(pickle, storages))});
    EXPECT_NE(ended.exit_code, 0) << ended.out;
    EXPECT_TRUE(contains(ended.err, "storage")) << ended.err;
  }
}

TEST_F(inspect_test, refuses_checkpoints_that_are_cut_off_or_damaged) {
  const std::string whole = zip_of({{"a", "12345"}, {"b", "678"}}, true);
  for (std::size_t length = 4; length < whole.size(); length += 7) {
    const auto ended = inspect({store("cut.pt", whole.substr(0, length))});
    EXPECT_EQ(ended.exit_code, 1) << length;
    EXPECT_TRUE(contains(ended.err, "not a complete zip file")) << ended.err;
  }
  // Whatever byte is another, it is told of or refused, and the program ends by itself.
  for (std::size_t at = 4; at < whole.size(); at += 3) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    EXPECT_LE(inspect({store("damaged.pt", damaged), "-q"}).exit_code, 1) << at;
  }
}

TEST_F(inspect_test, tells_the_files_of_an_index_and_what_does_not_agree) {
  store_tensors("one.safetensors", {{"a", tensor_type::u8, {1}}, {"b", tensor_type::u8, {1}}});
  store_tensors("two.safetensors", {{"c", tensor_type::u8, {1}}});
  const auto index_of = [&](const json& map) { return store("model.safetensors.index.json", json({{"weight_map", map}}).dump()); };
  const json right = {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}};
  const auto ended = inspect({index_of(right)});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, ": index of 2 files\n")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "one.safetensors: safetensors, 2 tensors")) << ended.out;

  const auto refused = [&](const json& map, const std::string& message) {
    const auto again = inspect({index_of(map)});
    EXPECT_EQ(again.exit_code, 1);
    EXPECT_TRUE(contains(again.err, message)) << again.err;
  };
  EXPECT_EQ(inspect({index_of({{"a", "one.safetensors"}})}).exit_code, 0) << "which may leave some out";
  EXPECT_TRUE(contains(inspect({directory_.path()}).out, ": index of 1 file\n"));
  refused({{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"x", "two.safetensors"}}, "two.safetensors lacks \"x\"");
  refused({{"a", "three.safetensors"}}, "three.safetensors: No such file");
  refused({{"a", "../one.safetensors"}}, "which is not a file in the index's folder");
  refused({{"a", 1}}, "has no \"weight_map\"");
  refused(1, "has no \"weight_map\"");
  EXPECT_TRUE(contains(inspect({store("x.json", "{")}).err, "the index is not valid JSON"));
}

TEST_F(inspect_test, goes_on_behind_a_file_that_fails) {
  const std::string good = store_tensors("good.safetensors", {{"a", tensor_type::u8, {1}}});
  const std::string bad = store("bad.safetensors", "not one");
  const auto ended = inspect({bad, directory_.path() + "/missing", good});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, bad + ": not a safetensors file: it is 7 bytes long")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "missing: No such file")) << ended.err;
  EXPECT_TRUE(contains(ended.out, "good.safetensors: safetensors, 1 tensor,")) << ended.out;
}

}  // namespace
}  // namespace penstock::cli_test
