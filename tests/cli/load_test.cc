// penstock load.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "penstock/tensors.hpp"
#include "support/gguf_files.hpp"
#include "support/zip_files.hpp"

namespace penstock::cli_test {
namespace {

using nlohmann::json;
using test_files::zip_of;
using words = std::vector<std::string>;

ended_program load(words arguments) {
  arguments.insert(arguments.begin(), "load");
  return run(arguments);
}

class load_test : public ::testing::Test {
 protected:
  std::string store(const std::string& name, const std::string& content) const {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string random_bytes(std::size_t count) {
    std::string made(count, '\0');
    for (char& each : made) each = static_cast<char>(random_());
    return made;
  }
  // Of these tensors, with random bytes.
  std::string store_tensors(const std::string& name, std::vector<tensor_facts> tensors) {
    const auto beginning = make_safetensors(tensors);
    EXPECT_TRUE(beginning.ok());
    return store(name, *beginning + random_bytes(tensors.back().offset + tensors.back().bytes - beginning->size()));
  }
  std::string store_checkpoint(const std::string& name) {
    return store(name, zip_of({{"m/data.pkl", "pickle"}, {"m/data/0", random_bytes(70001)}, {"m/data/1", random_bytes(3)}}, false));
  }
  scratch_directory directory_;
  std::mt19937_64 random_{1};
};

TEST_F(load_test, every_device_gets_every_byte_of_every_file) {
  // The first is longer than a request, and none begins at a multiple of what devices like.
  const std::string one = store_tensors(
      "one.safetensors", {{"a", tensor_type::u8, {33 * mib + 5}}, {"b", tensor_type::u8, {77}}, {"none", tensor_type::u8, {0}}});
  const std::string two = store_checkpoint("two.pt");
  const auto ended = load({one, two, "--device", "host:0,host:0", "--verify", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json told = json::parse(ended.out).at("loads").at(0);
  const std::uint64_t bytes = 33 * mib + 5 + 77 + 70001 + 3;
  EXPECT_EQ(told["bytes"], bytes);
  EXPECT_EQ(told["tensors"], 5);
  ASSERT_EQ(told["devices"].size(), 2U);
  for (const json& device : told["devices"]) {
    EXPECT_EQ(device["device"], "host:0");
    EXPECT_EQ(device["bytes"], bytes);
    EXPECT_EQ(device["verified"], true);
    EXPECT_EQ(device["ceiling_gb_per_s"], nullptr);  // not without --time
  }
  ASSERT_EQ(told["files"].size(), 2U);
  EXPECT_EQ(told["files"][1]["kind"], "checkpoint");
  EXPECT_EQ(told["files"][1]["bytes"], 70004);
  EXPECT_FALSE(told["plan"].empty());
  EXPECT_EQ(told["error"], nullptr);
}

TEST_F(load_test, tells_what_the_time_went_to_and_the_ceiling_of_the_link) {
  const std::string path = store_tensors("m.safetensors", {{"a", tensor_type::u8, {2 * mib}}});
  const auto ended = load({path, "--device", "host:0", "--links", "2", "--time", "--repeat", "2"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "to host:0 (")) << ended.out;
  EXPECT_TRUE(contains(ended.out, path + ": safetensors, 1 tensor, 2 MiB, ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "1 file, 1 tensor: 2 MiB in ")) << ended.out;
  for (const char* part :
       {"  opening ", "  allocating ", "  reading ", "ceiling: host:0, pinned memory to device, ", "% in the page cache"})
    EXPECT_TRUE(contains(ended.out, part)) << ended.out;
  const std::string ceiling = ended.out.substr(ended.out.find("ceiling: host:0"));
  EXPECT_TRUE(contains(ceiling, ": reached ") && contains(ceiling, "%, ")) << ceiling;  // of both loads
  EXPECT_FALSE(contains(ended.out, "--repeat 2")) << "there were two";
  EXPECT_TRUE(contains(load({path, "--device", "cpu", "--time"}).out, "note: the first load of a process also pins memory"));
  const auto as_json = load({path, "--device", "host:0", "--time", "--json"});
  const json device = json::parse(as_json.out).at("loads").at(0).at("devices").at(0);
  EXPECT_GT(device["ceiling_gb_per_s"], 0.0);
  EXPECT_GT(device["fraction_of_ceiling"], 0.0);
}

TEST_F(load_test, takes_indexes_and_folders) {
  store_tensors("one.safetensors", {{"a", tensor_type::u8, {1}}, {"b", tensor_type::u8, {1}}});
  store_tensors("two.safetensors", {{"c", tensor_type::u8, {1}}});
  const auto tensors_of = [&](const std::string& name) {
    const auto ended = load({name, "--device", "host:0", "--verify", "--json"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return json::parse(ended.out).at("loads").at(0).at("tensors").get<int>();
  };
  const auto refused = load({directory_.path(), "--device", "host:0"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "penstock: " + directory_.path() +
                             ": the folder contains neither model.safetensors.index.json nor model.safetensors; it contains "
                             "\"one.safetensors\", \"two.safetensors\": specify one of these\n");
  store_tensors("model.safetensors", {{"d", tensor_type::u8, {1}}});
  EXPECT_EQ(tensors_of(directory_.path()), 1);
  const std::string index = store("model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})");
  EXPECT_EQ(tensors_of(index), 2);
  EXPECT_EQ(tensors_of(directory_.path()), 2);  // the index says what belongs to the model
  store("model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors"}})");
  EXPECT_EQ(tensors_of(index), 1) << "the index decides which tensors of a file belong to the model";
  store("model.safetensors.index.json", R"({"weight_map": {"c": "one.safetensors"}})");
  const auto differs = load({index, "--device", "host:0"});
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_TRUE(contains(differs.err, "one.safetensors lacks \"c\"")) << differs.err;
}

TEST_F(load_test, takes_gguf_files_and_those_that_go_with_them) {
  using namespace test_files;
  const std::string info = gguf_tensor_info("q", {256, 100}, 14, 0);
  const std::string alone = store("m.gguf", gguf_file(gguf_beginning({}, {info}), random_bytes(21'000)));
  store("s-00001-of-00002.gguf", gguf_file(gguf_beginning({}, {gguf_tensor_info("a", {77}, 24, 0)}), random_bytes(77)));
  const std::string second =
      store("s-00002-of-00002.gguf", gguf_file(gguf_beginning({}, {gguf_tensor_info("b", {5}, 24, 0)}), random_bytes(5)));
  const auto ended = load({alone, second, "--device", "host:0", "--verify", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json told = json::parse(ended.out).at("loads").at(0);
  EXPECT_EQ(told["bytes"], 21'000 + 77 + 5);
  EXPECT_EQ(told["tensors"], 3);
  EXPECT_EQ(told["devices"][0]["verified"], true);
  ASSERT_EQ(told["files"].size(), 3U);
  EXPECT_EQ(told["files"][0]["kind"], "gguf");
}

TEST_F(load_test, a_part_of_a_gguf_model_under_another_name_is_not_loaded) {
  using namespace test_files;
  const words pairs = {gguf_u16("split.no", 1), gguf_u16("split.count", 2)};
  const std::string part = store("part", gguf_file(gguf_beginning(pairs, {gguf_tensor_info("a", {4}, 24, 0)}), "1234"));
  const auto ended = load({part});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "says that this is file 2 of 2 of a model")) << ended.err;
}

TEST_F(load_test, what_is_named_twice_is_loaded_once) {
  const std::string one = store_tensors("one.safetensors", {{"a", tensor_type::u8, {1}}});
  const auto ended = load({one, one, "--device", "host:0", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json::parse(ended.out).at("loads").at(0).at("tensors"), 1);
  const std::string two = store_tensors("two.safetensors", {{"a", tensor_type::u8, {2}}});
  EXPECT_TRUE(contains(load({one, two}).err, "these tensors are in two files: \"a\" in " + one + " and " + two));
}

TEST_F(load_test, names_what_it_cannot_load) {
  const std::string good = store_tensors("good.safetensors", {{"a", tensor_type::u8, {1}}});
  const auto refused = [&](const words& arguments, const std::string& message) {
    const auto ended = load(arguments);
    EXPECT_EQ(ended.exit_code, 1) << ended.out;
    EXPECT_TRUE(contains(ended.err, message)) << ended.err;
  };
  const std::string bad = store("bad.safetensors", "not one");
  refused({good, bad}, bad + ": not a safetensors file: it is 7 bytes long");
  refused({directory_.path() + "/missing"}, "missing: No such file");
  refused({store("x.zip", zip_of({{"a", "b"}}, false))}, "does not contain data.pkl");
  std::string packed = zip_of({{"m/data.pkl", "p"}, {"m/data/0", "abc"}}, false);
  packed[packed.rfind("PK\x01\x02") + 10] = 8;
  refused({store("packed.pt", packed)}, "\"m/data/0\" is compressed");
  refused({good, "--device", "cuda:99"}, "there is no device \"cuda:99\"");
  refused({store("pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid"), "--device", "cpu"}, "run `git lfs pull`");
  refused({good, "--gpus", "0,99"}, "cuda:");
  std::filesystem::create_directory(directory_.path() + "/empty");
  refused({directory_.path() + "/empty"}, "the folder contains neither");
  EXPECT_EQ(load({good, "--gpus", "0,x"}).exit_code, 2);
  EXPECT_EQ(load({good, "--links", "9"}).exit_code, 2);
  EXPECT_EQ(load({}).exit_code, 2);
}

TEST_F(load_test, a_model_that_does_not_fit_is_not_begun) {
  // Sparse: 4 TiB of zeros.
  std::vector<tensor_facts> tensors{{"a", tensor_type::u8, {std::uint64_t{1} << 42}}};
  const auto beginning = make_safetensors(tensors);
  ASSERT_TRUE(beginning.ok());
  const std::string path = store("large.safetensors", *beginning);
  std::filesystem::resize_file(path, beginning->size() + tensors[0].bytes);
  const auto ended = load({path, "--device", "host:0"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "the model does not fit into host:0: it needs 4 TiB, but only ")) << ended.err;
}

// Repeated until the signal comes, so no moment is too early or too late for it.
TEST_F(load_test, an_interrupt_ends_it_with_130) {
  const std::string path = store_tensors("m.safetensors", {{"a", tensor_type::u8, {64 * mib}}});
  program child({"load", path, "--device", "host:0", "--repeat", "1000000"});
  ASSERT_TRUE(child.wait_for_output("GB/s"));
  child.send(SIGINT);
  const ended_program ended = child.finish();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_TRUE(contains(ended.err, "penstock: interrupted")) << ended.err;
}

}  // namespace
}  // namespace penstock::cli_test
