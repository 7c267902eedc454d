#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "penstock/tensors.hpp"
#include "support/engines.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "tensors/tensor_files.hpp"

namespace penstock {
namespace {

using testing::entry;

class read_safetensors_test : public ::testing::Test {
 protected:
  [[nodiscard]] file opened(const std::string& content) const {
    testing::store_file(path_, std::as_bytes(std::span(content)));
    return testing::opened_file(engine_, path_, {.read = true});
  }
  testing::temp_dir directory_;
  std::string path_ = directory_.file("model.safetensors");
  engine engine_ = testing::made_engine(testing::without_cuda());
};

TEST_F(read_safetensors_test, tells_what_is_in_a_file) {
  const std::string beginning = testing::with_length("{" + entry("a", "U8", "[5]", 0, 5) + "} ");
  const file from = opened(beginning + "bytes");
  const auto header = read_safetensors(from);
  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->tensors().size(), 1U);
  EXPECT_EQ(header->data_offset(), beginning.size());
  std::string bytes(5, ' ');
  EXPECT_EQ(from.read(bytes.data(), 5, static_cast<std::int64_t>(header->tensors()[0].offset)).bytes_done, 5U);
  EXPECT_EQ(bytes, "bytes");
}

TEST_F(read_safetensors_test, names_what_a_download_left_in_place_of_a_model) {
  const auto refusal = [&](const std::string& content) {
    const auto header = read_safetensors(opened(content));
    EXPECT_EQ(header.error().code(), errc::invalid_argument);
    return std::string(header.error().message());
  };
  EXPECT_EQ(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
            path_ + " is a git-lfs pointer, not the file itself: run `git lfs pull`");
  const std::string page = path_ + " is an HTML page, not a safetensors file: was the download refused?";
  for (const char* content : {"<!DOCTYPE html><html lang=en>", "<!doctype HTML>", "\n  <html><body>404", "<HTML>1234"})
    EXPECT_EQ(refusal(content), page);
  EXPECT_NE(refusal("<htm"), page);
  EXPECT_NE(refusal("version https://example.org/spec"), page);
}

TEST_F(read_safetensors_test, reads_headers_longer_than_its_first_read) {
  std::mt19937_64 random(1);
  for (const std::size_t count : {1'000U, 10'000U}) {
    auto tensors = testing::random_tensors(count, random);
    const auto made = make_safetensors(tensors);
    ASSERT_TRUE(made);
    ASSERT_GT(made->size(), 64U << 10);
    const std::uint64_t data_bytes = tensors.back().offset + tensors.back().bytes - made->size();
    const auto header = read_safetensors(opened(*made + std::string(data_bytes, 'x')));
    ASSERT_TRUE(header) << header.error().message();
    EXPECT_EQ(header->tensors().size(), count);
  }
}

TEST_F(read_safetensors_test, reads_headers_that_end_where_its_first_read_does) {
  for (const std::size_t size : {(64U << 10) - 1, 64U << 10, (64U << 10) + 1}) {
    std::string json = "{" + entry("a", "U8", "[1]", 0, 1) + "}";
    json.resize(size - 8, ' ');
    const auto header = read_safetensors(opened(testing::with_length(json) + "x"));
    ASSERT_TRUE(header) << header.error().message();
    EXPECT_EQ(header->tensors()[0].offset, size);
  }
}

TEST_F(read_safetensors_test, reads_offsets_of_terabytes) {
  const std::uint64_t large = std::uint64_t{1} << 40;
  std::vector<tensor_facts> tensors = {{"large", tensor_type::f32, {large / 4}}, {"last", tensor_type::u8, {3}}};
  const auto made = make_safetensors(tensors);
  ASSERT_TRUE(made);
  testing::store_file(path_, std::as_bytes(std::span(*made)));
  std::error_code error;
  std::filesystem::resize_file(path_, made->size() + large + 3, error);
  if (error) GTEST_SKIP() << "this file system has no sparse files of a terabyte: " << error.message();
  const auto header = read_safetensors(testing::opened_file(engine_, path_, {.read = true}));
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->find("last")->offset, made->size() + large);
}

TEST_F(read_safetensors_test, refuses_a_file_that_is_cut_off_anywhere) {
  const std::string whole = testing::with_length("{\"__metadata__\":{\"k\":\"v\"}," + entry("a", "U8", "[3]", 0, 3) + "," +
                                                 entry("b", "F32", "[1]", 3, 7) + "}") +
                            "bytes!!";
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto header = read_safetensors(opened(whole.substr(0, length)));
    ASSERT_FALSE(header) << length;
    EXPECT_EQ(header.error().code(), errc::invalid_argument);
    EXPECT_TRUE(header.error().message().starts_with(path_ + ": ")) << header.error().message();
  }
  EXPECT_TRUE(read_safetensors(opened(whole)));
  EXPECT_EQ(read_safetensors(opened(whole + "!")).error().message(), path_ + ": the last 1 bytes of the file do not belong to any tensor");
}

TEST_F(read_safetensors_test, refuses_a_file_that_is_written_while_it_is_read) {
  // A writer that has made room for all of it, and not written yet, leaves zeros.
  EXPECT_EQ(read_safetensors(opened(std::string(100, '\0'))).error().message(),
            path_ + ": at byte 0 of the header, a header must start with '{'");
  // The length is there already, the header is not.
  const std::string json = "{" + entry("a", "U8", "[3]", 0, 3) + "}";
  std::string half = testing::with_length(json) + "xyz";
  for (std::size_t i = 8 + 20; i < half.size(); ++i) half[i] = '\0';
  EXPECT_FALSE(read_safetensors(opened(half)));
}

TEST_F(read_safetensors_test, tells_the_error_of_a_file_that_cannot_be_read) {
  EXPECT_EQ(read_safetensors(file()).error().code(), errc::closed);
  file closed = opened("");
  ASSERT_TRUE(closed.close().ok());
  EXPECT_EQ(read_safetensors(closed).error().code(), errc::closed);
}

}  // namespace
}  // namespace penstock
