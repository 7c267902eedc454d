#include "kv/index_log.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "penstock/kv.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::kv {
namespace {

constexpr std::uint64_t capacity = 64 * block_bytes;

std::vector<std::byte> content_of(const std::string& path) {
  std::ifstream from(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(from), {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::map<std::string, std::uint64_t> values_of(const catalogue& of) {
  std::map<std::string, std::uint64_t> found;
  for (const auto& each : of.in_order_of_use()) found[each.key()] = each.facts().sequence;
  return found;
}

class kv_index : public ::testing::Test {
 protected:
  kv_index() {
    auto opened = folder::open(directory_.file("store"), true);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    in_ = *std::move(opened);
  }

  index_log made() { return made_of(catalogue(capacity)); }

  index_log made_of(const catalogue& of) {
    const auto header = new_header(capacity);
    auto log = index_log::create(in_, header, records_of(of, header.id));
    EXPECT_TRUE(log.ok()) << log.error().message();
    return *std::move(log);
  }

  // Puts of so many keys, each a block, and a drop after every third.
  static new_records some_records(const index_log& of, std::uint64_t count) {
    new_records records(of.header().id);
    for (std::uint64_t i = 1; i <= count; ++i) {
      const std::string key = "key-" + std::to_string(i);
      records.add({record_kind::value, key, {i, i * block_bytes, 100 + i, i * 7}});
      if (i % 3 == 0) records.add({record_kind::dropped, key, {i, 0, 0, {}}});
    }
    return records;
  }

  // What is read from the file as it is: what the log says up to where it is right.
  std::optional<catalogue> read() {
    auto log = index_log::open(in_, true);
    if (!log) return std::nullopt;
    catalogue found(log->header().capacity_bytes);
    auto whole = log->read_new([&](const record& each) { return found.apply(each); });
    if (!whole) return std::nullopt;
    EXPECT_LE(log->end(), content_of(path()).size());
    return found;
  }

  [[nodiscard]] std::string path() const { return in_.path_of("index"); }

  testing::temp_dir directory_;
  folder in_;
};

TEST_F(kv_index, records_come_back_as_they_were_and_who_follows_sees_new_ones) {
  auto log = made();
  auto follower = index_log::open(in_, false);
  ASSERT_TRUE(follower.ok());
  catalogue seen(capacity);
  const auto apply = [&](const record& each) { return seen.apply(each); };
  ASSERT_TRUE(*follower->read_new(apply));
  EXPECT_EQ(seen.keys(), 0U);
  ASSERT_EQ(log.append_records(some_records(log, 7)).count, 9U);
  ASSERT_TRUE(*follower->read_new(apply));
  EXPECT_EQ(values_of(seen), (std::map<std::string, std::uint64_t>{{"key-1", 1}, {"key-2", 2}, {"key-4", 4}, {"key-5", 5}, {"key-7", 7}}));
  EXPECT_EQ(seen.find("key-7")->facts().checksum, 49U);
  EXPECT_EQ(seen.find("key-7")->facts().length, 107U);
  EXPECT_EQ(follower->end(), log.end());
  EXPECT_FALSE(*follower->was_replaced(in_));
  const auto next = made_of(seen);
  EXPECT_TRUE(*follower->was_replaced(in_));
  EXPECT_EQ(values_of(*read()), values_of(seen));
  EXPECT_LT(next.end(), log.end());
}

TEST_F(kv_index, a_log_that_is_cut_anywhere_gives_a_beginning_of_what_was_written) {
  auto log = made();
  const auto begin = log.end();
  const auto records = some_records(log, 6);
  ASSERT_TRUE(log.append_records(records).error.ok());
  const auto whole = content_of(path());
  for (std::size_t length = begin; length < whole.size(); ++length) {
    testing::store_file(path(), std::span(whole).first(length));
    auto found = read();
    ASSERT_TRUE(found) << length;
    catalogue expected(capacity);
    auto part = index_log::open(in_, true);
    ASSERT_TRUE(part.ok());
    (void)part->read_new([&](const record& each) { return expected.apply(each); });
    EXPECT_EQ(part->end() - begin, records.end_of_first(records.whole_within(length - begin))) << length;
    ASSERT_TRUE(part->cut().ok());
    EXPECT_EQ(content_of(path()).size(), part->end());
  }
}

// Whatever is changed, what is read was written, in that order, up to the first record that is not right.
TEST_F(kv_index, damaged_bytes_are_never_believed) {
  auto log = made();
  ASSERT_TRUE(log.append_records(some_records(log, 20)).error.ok());
  const auto whole = content_of(path());
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    auto damaged = whole;
    const auto changes = 1 + random() % 4;
    for (unsigned i = 0; i < changes; ++i) {
      const auto at = random() % damaged.size();
      const auto length = std::min<std::size_t>(damaged.size() - at, 1 + random() % 12);
      for (std::size_t j = 0; j < length; ++j) damaged[at + j] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    testing::store_file(path(), damaged);
    const auto found = read();
    if (!found) continue;  // the header
    for (const auto& each : found->in_order_of_use()) {
      EXPECT_EQ(each.key(), "key-" + std::to_string(each.facts().sequence));
      EXPECT_EQ(each.facts().offset, each.facts().sequence * block_bytes);
      EXPECT_EQ(each.facts().checksum, each.facts().sequence * 7);
    }
  }
}

TEST_F(kv_index, records_with_right_checksums_that_cannot_be_are_refused) {
  auto log = made();
  const std::string key(most_key_bytes, 'k');
  const value_facts impossible[] = {{1, 1, 10, {}},         // not at a block
                                    {1, capacity, 10, {}},  // behind the end
                                    {1, capacity - block_bytes, block_bytes + 1, {}},
                                    {1, 0, 0, {}},  // nothing
                                    {1, 0, ~std::uint64_t{0}, {}},
                                    {1, ~std::uint64_t{0} / block_bytes * block_bytes, ~std::uint64_t{0}, {}}};
  for (const auto& each : impossible) {
    std::vector<std::byte> bytes;
    append(bytes, log.header().id, {record_kind::value, key, each});
    EXPECT_EQ(parse_record(bytes, log.header()).is, parsed_record::state::wrong);
  }
  std::vector<std::byte> bytes;
  append(bytes, log.header().id + 1, {record_kind::value, key, {1, 0, 10, {}}});
  EXPECT_EQ(parse_record(bytes, log.header()).is, parsed_record::state::wrong) << "of another index";
}

TEST_F(kv_index, a_file_of_others_is_refused_by_name) {
  testing::store_pattern(path(), 5000, 3);
  ::chmod(path().c_str(), 0600);
  auto log = index_log::open(in_, true);
  ASSERT_FALSE(log.ok());
  EXPECT_EQ(log.error().code(), errc::unsupported);
  EXPECT_NE(log.error().message().find(path()), std::string_view::npos);
}

TEST_F(kv_index, a_log_that_cannot_grow_keeps_whole_records) {
  auto log = made();
  ASSERT_TRUE(log.append_records(some_records(log, 3)).error.ok());
  const auto end = log.end();
  ::chmod(path().c_str(), 0600);
  auto reader = index_log::open(in_, false);  // its descriptor cannot write
  ASSERT_TRUE(reader.ok());
  catalogue seen(capacity);
  (void)reader->read_new([&](const record& each) { return seen.apply(each); });
  const auto failed = reader->append_records(some_records(log, 3));
  EXPECT_EQ(failed.count, 0U);
  EXPECT_FALSE(failed.error.ok());
  EXPECT_EQ(reader->end(), end);
}

}  // namespace
}  // namespace penstock::kv
