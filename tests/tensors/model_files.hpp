// Fixtures of tests that open and load models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/penstock.hpp"
#include "support/engines.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock {

using words = std::vector<std::string>;

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

inline std::string map_of(const std::string& members) { return R"({"metadata": {"total_size": 1e9}, "weight_map": {)" + members + "}}"; }

class model_files_test : public ::testing::Test {
 protected:
  [[nodiscard]] std::string store(const std::string& name, const std::string& content) const {
    const std::string path = directory_.file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    testing::store_file(path, std::as_bytes(std::span(content)));
    return path;
  }
  // A file of these tensors, with random bytes, which are kept to compare with.
  std::string store_tensors(const std::string& name, std::vector<tensor_facts> tensors) {
    const auto beginning = make_safetensors(tensors);
    EXPECT_TRUE(beginning.ok());
    std::string content = *beginning;
    content.resize(tensors.empty() ? content.size() : tensors.back().offset + tensors.back().bytes);
    for (std::size_t i = beginning->size(); i < content.size(); ++i) content[i] = static_cast<char>(random_());
    for (const tensor_facts& each : tensors) bytes_[each.name] = content.substr(each.offset, each.bytes);
    return store(name, content);
  }
  std::string store_index(const std::string& members) const { return store(std::string(model_index_name), map_of(members)); }
  // Of two shards, one in a folder below.
  void store_shards() {
    store_tensors("one.safetensors", {{"a", tensor_type::u8, {5}}, {"b", tensor_type::f32, {2, 3}}});
    store_tensors("sub/two.safetensors", {{"c", tensor_type::bf16, {4}}, {"none", tensor_type::u8, {0}}});
  }
  [[nodiscard]] result<model> opened(const words& paths) const { return model::open(engine_, paths); }
  [[nodiscard]] model good(const words& paths) const {
    auto made = opened(paths);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made ? *std::move(made) : model();
  }
  void expect_refused(const words& paths, errc code, const std::string& message) const {
    const auto refused = opened(paths);
    ASSERT_FALSE(refused) << message;
    EXPECT_EQ(refused.error().code(), code) << refused.error().message();
    EXPECT_TRUE(contains(refused.error().message(), message)) << refused.error().message();
  }

  testing::temp_dir directory_;
  std::string folder_ = directory_.file("");
  engine engine_ = testing::made_engine(testing::without_cuda());
  std::mt19937_64 random_{1};
  std::map<std::string, std::string> bytes_;
};

class load_model_test : public model_files_test {
 protected:
  [[nodiscard]] device_buffer memory_of(const model_layout& layout) const {
    auto made = engine_.allocate("host:0", std::max<std::uint64_t>(layout.bytes, 1));
    EXPECT_TRUE(made.ok());
    return *std::move(made);
  }
  [[nodiscard]] std::string content_of(const device_buffer& memory) const {
    std::string content(memory.size(), '\0');
    EXPECT_TRUE(engine_.copy(content.data(), memory.data(), content.size()).ok());
    return content;
  }
  void expect_all(const model_layout& layout, const device_buffer& memory) const {
    const std::string content = content_of(memory);
    for (const placed_tensor& each : layout.tensors) {
      const std::string& bytes = bytes_.at(each.tensor.facts->name);
      std::string expected;
      for (std::uint64_t i = 0; i < each.part.runs(); ++i) expected += bytes.substr(each.part.start_of(i), each.part.run_bytes);
      EXPECT_TRUE(content.substr(each.place, each.part.bytes()) == expected) << each.tensor.facts->name;
    }
  }
};

}  // namespace penstock
