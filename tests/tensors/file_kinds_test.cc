// The table of file kinds: what it recognizes, and how a kind is added.
#include "penstock/file_kinds.hpp"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "penstock/tensors.hpp"
#include "support/engines.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "tensors/tensor_files.hpp"

namespace penstock {
namespace {

using namespace std::string_literals;

class file_kinds_test : public ::testing::Test {
 protected:
  [[nodiscard]] file opened(const std::string& content, const std::string& name = "x") const {
    const std::string path = directory_.file(name);
    testing::store_file(path, std::as_bytes(std::span(content)));
    return testing::opened_file(engine_, path, {.read = true});
  }
  [[nodiscard]] std::string word_of(const std::string& content, const std::string& name = "x") const {
    const auto kind = find_file_kind(opened(content, name));
    if (!kind) return std::string(kind.error().message());
    return *kind == nullptr ? "" : std::string((*kind)->word);
  }
  testing::temp_dir directory_;
  engine engine_ = testing::made_engine(testing::without_cuda());
};

// The beginning of an archive whose directory is lost.
std::string beginning_of_zip(const std::string& member) {
  return "PK\3\4"s + std::string(22, '\0') + static_cast<char>(member.size()) + std::string(3, '\0') + member;
}

TEST_F(file_kinds_test, recognizes_a_file_by_its_content) {
  const struct {
    const char* word;
    std::string content;
  } files[] = {
      {"safetensors", testing::with_length("{} ")},
      {"index", R"( {"metadata": {}, "weight_map": {"a": "b"}})"},
      {"gguf", "GGUF"},
      {"npy", "\x93NUMPY\1"},
      {"npz", beginning_of_zip("a.npy")},
      {"checkpoint", beginning_of_zip("m/data.pkl")},
      {"checkpoint", "\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20j."},
      {"zip", beginning_of_zip("readme")},
      {"zip", "PK\3\4"},
      {"pickle", "\x80\4\x95 ."},
      {"pickle", "\x80\2}q."},
      {"hdf5", "\x89HDF\r\n\x1a\n"},
      {"git-lfs", "version https://git-lfs.github.com/spec/v1"},
      {"gzip", "\x1f\x8b\b"},
      {"html", "\n<HTML>"},
      {"json", R"({"weight_map": [1]})"},
      {"json", "[1]"},
      {"", ""},
      {"", "plain"},
      {"", "\x80\4\x95 not a pickle"},
      {"", "{\1\0\0\0\0\0\0 a damaged header"s},
  };
  for (const auto& [word, content] : files) EXPECT_EQ(word_of(content), word) << content;
  EXPECT_EQ(word_of("PK\5\6" + std::string(18, '\0'), "empty.NPZ"), "npz");
}

TEST_F(file_kinds_test, finds_a_kind_by_the_extension_in_any_case) {
  EXPECT_EQ(kind_by_ending("a/B.SafeTensors")->word, "safetensors");
  EXPECT_EQ(kind_by_ending("pytorch_model.bin")->word, "checkpoint");
  EXPECT_EQ(kind_by_ending("bin"), nullptr);
}

TEST_F(file_kinds_test, a_new_kind_is_one_line) {
  detail::add_file_kind({.word = "new", .name = "a file of a new kind", .magics = {"NEWKIND"}, .advice = ": use new.load()"});
  EXPECT_EQ(word_of("NEWKIND and more"), "new");
  const file other = opened("NEWKIND and more");
  EXPECT_EQ(read_safetensors(other).error().message(), other.path() + " is a file of a new kind, not a safetensors file: use new.load()");
}

}  // namespace
}  // namespace penstock
