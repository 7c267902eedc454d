// Bytes that arrive in order are kept in memory and, beyond that, in a file.
#include "remote/object/stream_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.hpp"

namespace penstock::source::remote {
namespace {

constexpr std::size_t memory_bytes = std::size_t{32} << 20;

std::vector<std::byte> bytes_of(std::size_t length, unsigned seed = 1) {
  std::vector<std::byte> made(length);
  for (std::size_t i = 0; i < length; ++i) made[i] = static_cast<std::byte>((i + seed) * 2654435761U >> 24);
  return made;
}

void put_all(stream_store& to, const std::vector<std::byte>& content, std::size_t step) {
  for (std::size_t at = 0; at < content.size(); at += step) {
    const auto problem = to.put(std::span(content).subspan(at, std::min(step, content.size() - at)), at);
    ASSERT_TRUE(problem.ok()) << problem.message();
  }
}

TEST(stream_store, gives_back_any_range_of_what_came) {
  const ::penstock::testing::temp_dir folder;
  const auto content = bytes_of(memory_bytes + 3'000'001);
  stream_store kept(folder.path().string());
  EXPECT_EQ(kept.told(), "in memory");
  put_all(kept, content, 700'001);
  EXPECT_EQ(kept.size(), content.size());
  EXPECT_EQ(kept.told(), "in memory and in a temporary file in " + folder.path().string());
  for (const auto& [offset, length] : std::initializer_list<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {(1U << 20) - 1, 2}, {memory_bytes - 5, 10}, {memory_bytes, 100}, {content.size() - 1, 1}, {0, content.size()}}) {
    std::vector<std::byte> back(length);
    EXPECT_TRUE(kept.read(back.data(), length, offset).ok());
    EXPECT_TRUE(std::equal(back.begin(), back.end(), content.begin() + static_cast<std::ptrdiff_t>(offset))) << offset;
  }
}

TEST(stream_store, takes_what_is_there_again_if_it_is_the_same) {
  const ::penstock::testing::temp_dir folder;
  auto content = bytes_of(memory_bytes + 100'000);
  stream_store kept(folder.path().string());
  put_all(kept, content, 1'000'000);
  put_all(kept, content, 999'999);
  EXPECT_EQ(kept.size(), content.size());
  for (const std::size_t at : {std::size_t{7}, memory_bytes + 7}) {
    const std::vector<std::byte> other{content[at] ^ std::byte{1}};
    EXPECT_NE(std::string(kept.put(other, at).message()).find("was replaced while"), std::string::npos);
  }
}

TEST(stream_store, says_where_no_file_can_be_made) {
  stream_store kept("/nowhere");
  const auto content = bytes_of(memory_bytes);
  put_all(kept, content, content.size());
  const std::vector<std::byte> more(1);
  const auto refused = kept.put(more, content.size());
  EXPECT_NE(std::string(refused.message()).find("/nowhere"), std::string::npos) << refused.message();
  EXPECT_NE(std::string(refused.message()).find("TMPDIR"), std::string::npos) << refused.message();
  EXPECT_EQ(kept.size(), content.size());
}

}  // namespace
}  // namespace penstock::source::remote
