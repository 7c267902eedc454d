#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/engine_core.hpp"
#include "kv/kv_fixture.hpp"
#include "kv/record.hpp"
#include "support/child.hpp"
#include "support/faulty_kernel.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/gated_kernel.hpp"

namespace penstock::kv {
namespace {

class kv_store : public ::testing::Test {
 protected:
  engine engine_ = testing::made_engine(quiet_engine());
  testing::temp_dir directory_;
  std::string folder_ = directory_.file("store");
};

TEST_F(kv_store, values_in_many_pieces_come_back_in_others) {
  const auto of = made_store(engine_, folder_);
  auto value = value_of(1, 3);
  const std::size_t third = value.size() / 3;
  const memory_piece written[] = {{value.data(), third}, {value.data() + third, 0}, {value.data() + third, value.size() - third}};
  const auto put = of.put({{"a", written}});
  ASSERT_EQ(put[0].ended, outcome::done) << told(put[0].error);
  EXPECT_EQ(put[0].bytes, value.size());
  auto memory = engine_.allocate("host:0", value.size());
  ASSERT_TRUE(memory.ok());
  auto* const on_device = static_cast<std::byte*>(memory->data());
  bytes rest(value.size());
  const memory_piece read[] = {{rest.data(), 5}, {on_device, value.size() - 5}};
  const auto got = of.get({{"a", read}, {"b", read}});
  ASSERT_EQ(got[0].ended, outcome::done) << told(got[0].error);
  EXPECT_EQ(got[1].ended, outcome::absent);
  ASSERT_TRUE(engine_.copy(rest.data() + 5, on_device, value.size() - 5).ok());
  EXPECT_EQ(rest, value);
  const auto told_of = of.stats();
  EXPECT_EQ(told_of.keys, 1U);
  EXPECT_EQ(told_of.bytes, value.size());
  EXPECT_EQ(told_of.hits, 1U);
  EXPECT_EQ(told_of.misses, 1U);
  EXPECT_EQ((told_of.bytes + told_of.wasted_bytes) % block_bytes, 0U);
}

TEST_F(kv_store, pieces_that_are_neighbours_in_memory_are_one_request) {
  const auto of = made_store(engine_, folder_);
  auto value = testing::pattern::make(32 * 512, 3);
  bytes on_host(value.size());
  auto memory = engine_.allocate("host:0", value.size());
  ASSERT_TRUE(memory.ok());
  auto* const on_device = static_cast<std::byte*>(memory->data());
  const auto cut = [](std::byte* base) {
    std::vector<memory_piece> pieces;
    for (std::size_t i = 0; i < 32; ++i) pieces.push_back({base + 512 * i, 512});
    return pieces;
  };
  const auto before = engine_.stats();
  ASSERT_EQ(of.put({{"a", cut(value.data())}})[0].ended, outcome::done);
  EXPECT_EQ(engine_.stats().writes, before.writes + 1);
  ASSERT_EQ(of.get({{"a", cut(on_host.data())}})[0].ended, outcome::done);
  ASSERT_EQ(of.get({{"a", cut(on_device)}})[0].ended, outcome::done);
  EXPECT_EQ(engine_.stats().reads, before.reads + 2);
  EXPECT_EQ(on_host, value);
  ASSERT_TRUE(engine_.copy(on_host.data(), on_device, on_host.size()).ok());
  EXPECT_EQ(on_host, value);
  auto backwards = cut(on_host.data());
  std::reverse(backwards.begin(), backwards.end());
  ASSERT_EQ(of.get({{"a", backwards}})[0].ended, outcome::done);
  EXPECT_EQ(engine_.stats().reads, before.reads + 2 + 32);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(std::memcmp(backwards[i].memory, value.data() + 512 * i, 512), 0) << i;
}

// The host device, whose allocations count as two neighbouring ones, cut in the middle.
class halving_driver final : public device::driver {
 public:
  [[nodiscard]] std::string_view kind() const override { return "host"; }
  result<int> count() override { return inner_->count(); }
  result<device::device_facts> describe(int ordinal) override { return inner_->describe(ordinal); }
  result<device::memory_info> classify(const void* memory) override {
    auto found = inner_->classify(memory);
    if (!found || found->type != device::memory_type::device) return found;
    found->size /= 2;
    if (static_cast<const std::byte*>(memory) >= found->base + found->size) found->base += found->size;
    return found;
  }
  result<device::session*> open(int ordinal, void* context) override { return inner_->open(ordinal, context); }

 private:
  const std::shared_ptr<device::driver> inner_ = device::make_host_driver();
};

// As one they would reach past the end of the first.
TEST_F(kv_store, pieces_of_neighbouring_allocations_stay_apart) {
  auto doors = core::real_seams(quiet_engine());
  doors.host = std::make_shared<halving_driver>();
  const auto with = core::make_engine(quiet_engine(), std::move(doors));
  ASSERT_TRUE(with.ok()) << told(with.error());
  const auto of = made_store(*with, folder_);
  auto memory = with->allocate("host:0", 8192);
  ASSERT_TRUE(memory.ok());
  auto* const base = static_cast<std::byte*>(memory->data());
  auto value = testing::pattern::make(8192, 4);
  for (const std::size_t half : {0, 4096}) ASSERT_TRUE(with->copy(base + half, value.data() + half, 4096).ok());
  const memory_piece pieces[] = {{base, 2048}, {base + 2048, 2048}, {base + 4096, 4096}};
  const auto put = of.put({{"a", pieces}});
  ASSERT_EQ(put[0].ended, outcome::done) << told(put[0].error);
  EXPECT_EQ(with->stats().writes, 2U);
  const auto got = of.get({{"a", pieces}});
  ASSERT_EQ(got[0].ended, outcome::done) << told(got[0].error);
  EXPECT_EQ(with->stats().reads, 2U);
  EXPECT_EQ(fetched(of, "a"), value);
}

// Remembers where values of one length are read.
class recording_kernel final : public testing::forwarding_kernel {
 public:
  static constexpr std::size_t length_bytes = 4100;
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    if (length == length_bytes) {
      const std::lock_guard guard(lock_);
      read_.push_back(offset);
    }
    return inner().pread(fd, target, length, offset);
  }
  std::vector<std::uint64_t> read() {
    const std::lock_guard guard(lock_);
    return std::exchange(read_, {});
  }

 private:
  std::mutex lock_;  // guards read_
  std::vector<std::uint64_t> read_;
};

TEST_F(kv_store, values_are_read_in_the_order_of_the_file_whatever_that_of_the_keys) {
  auto doors = core::real_seams(quiet_engine());
  const auto kernel = std::make_shared<recording_kernel>();
  doors.kernel = kernel;
  const auto with = core::make_engine(quiet_engine(), std::move(doors));
  ASSERT_TRUE(with.ok()) << told(with.error());
  const auto of = made_store(*with, folder_);
  constexpr std::size_t count = 8;  // which one thread reads
  std::vector<bytes> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(testing::pattern::make(recording_kernel::length_bytes, i));
    ASSERT_EQ(put_one(of, key_of(i), values.back()).ended, outcome::done);
  }
  for (const bool waits : {true, false}) {
    std::vector<std::string> names;
    std::vector<bytes> back(count, bytes(recording_kernel::length_bytes));
    std::vector<memory_piece> pieces;
    std::vector<item> items;
    for (std::size_t i = 0; i < count; ++i) names.push_back(key_of((5 * i + 3) % count));
    for (auto& each : back) pieces.push_back({each.data(), each.size()});
    for (std::size_t i = 0; i < count; ++i) items.push_back({names[i], std::span(&pieces[i], 1)});
    const auto got = waits ? of.get(items) : of.get_async(items).wait();
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(got[i].ended, outcome::done) << told(got[i].error);
      EXPECT_EQ(back[i], values[(5 * i + 3) % count]) << i;
    }
    const auto read = kernel->read();
    EXPECT_EQ(read.size(), count);
    EXPECT_TRUE(std::ranges::is_sorted(read));
  }
}

TEST_F(kv_store, memory_of_a_gpu_goes_to_the_disk_and_back) {
  auto options = quiet_engine();
  options.use_cuda = true;
  const auto with = testing::made_engine(options);
  if (!with.cuda_status().ok()) GTEST_SKIP() << "no GPU: " << with.cuda_status().message();
  const auto of = made_store(with, folder_, {.capacity_bytes = 16 << 20});
  auto value = testing::pattern::make((3 << 20) + 77, 5);
  auto memory = with.allocate("cuda:0", 2 * value.size());
  ASSERT_TRUE(memory.ok()) << told(memory.error());
  auto* const source = static_cast<std::byte*>(memory->data());
  auto* const target = source + value.size();
  ASSERT_TRUE(with.copy(source, value.data(), value.size()).ok());
  const memory_piece written[] = {{source, 1000}, {source + 1000, value.size() - 1000}};
  ASSERT_EQ(of.put({{"a", written}})[0].ended, outcome::done);
  const memory_piece read[] = {{target, value.size() / 2}, {target + value.size() / 2, value.size() - value.size() / 2}};
  ASSERT_EQ(of.get_async({{"a", read}}).wait()[0].ended, outcome::done);
  bytes back(value.size());
  ASSERT_TRUE(with.copy(back.data(), target, back.size()).ok());
  EXPECT_EQ(back, value);
  EXPECT_EQ(fetched(of, "a"), value);
}

TEST_F(kv_store, what_was_put_is_there_when_it_is_opened_again) {
  for (std::uint64_t round = 1; round <= 3; ++round) {
    auto of = made_store(engine_, folder_, {.capacity_bytes = round == 1 ? std::uint64_t{1} << 20 : 0});
    for (std::uint64_t key = 1; key < round; ++key) EXPECT_EQ(fetched(of, key_of(key)), value_of(key, key));
    auto value = value_of(round, round);
    EXPECT_EQ(put_one(of, key_of(round), value).ended, outcome::done);
    EXPECT_TRUE(of.close().ok());
    EXPECT_EQ(of.close().code(), errc::closed);
    EXPECT_EQ(put_one(of, "x", value).error.code(), errc::closed);
  }
}

TEST_F(kv_store, the_least_recently_used_values_make_room) {
  const auto of = made_store(engine_, folder_, {.capacity_bytes = 4 * block_bytes});
  bytes block(block_bytes);
  for (const char* key : {"a", "b", "c", "d"}) ASSERT_EQ(put_one(of, key, block).ended, outcome::done);
  ASSERT_EQ(get_one(of, "a", block).ended, outcome::done);
  ASSERT_EQ(put_one(of, "e", block).ended, outcome::done);
  EXPECT_FALSE(there(of, "b"));
  for (const char* key : {"a", "c", "d", "e"}) EXPECT_TRUE(there(of, key)) << key;
  bytes all(4 * block_bytes);
  ASSERT_EQ(put_one(of, "all", all).ended, outcome::done);
  EXPECT_EQ(of.stats().keys, 1U);
  EXPECT_EQ(of.stats().evicted, 5U);
  bytes more(4 * block_bytes + 1);
  EXPECT_EQ(put_one(of, "more", more).error.code(), errc::invalid_argument);
  EXPECT_TRUE(there(of, "all"));
}

// A chain of blocks is of use from its first block on.
TEST_F(kv_store, of_the_keys_of_one_call_the_last_is_dropped_first) {
  bytes block(block_bytes);
  const memory_piece piece{block.data(), block.size()};
  const std::span one(&piece, 1);
  const std::string_view keys[] = {"a", "b", "c", "d"};
  const std::vector<item> items = {{"a", one}, {"b", one}, {"c", one}, {"d", one}};
  struct use {
    const char* name;
    store_options how;
    std::function<void(store&)> make;
    std::string_view dropped;
  };
  const auto put_each = [&](store& to) {
    for (const item& each : items) ASSERT_EQ(to.put({each})[0].ended, outcome::done);
  };
  const store_options usual{.capacity_bytes = 4 * block_bytes};
  const std::vector<use> uses = {
      {"put", usual, [&](store& to) { (void)to.put(items); }, "d"},
      {"put in many rounds",
       {.capacity_bytes = 4 * block_bytes, .most_put_bytes_under_way = block_bytes},
       [&](store& to) { (void)to.put(items); },
       "d"},
      {"put and opened again", usual,
       [&](store& to) {
         (void)to.put(items);
         ASSERT_TRUE(to.close().ok());
         to = made_store(engine_, directory_.file("put and opened again"), {});
       },
       "d"},
      {"put one by one", usual, put_each, "a"},
      {"got", usual, [&](store& to) { put_each(to), (void)to.get(items); }, "d"},
      {"got without waiting", usual, [&](store& to) { put_each(to), (void)to.get_async(items).wait(); }, "d"},
      {"sizes", usual, [&](store& to) { put_each(to), (void)to.sizes(keys); }, "d"},
      {"the first looked up", usual, [&](store& to) { put_each(to), (void)there(to, "a"); }, "b"},
  };
  for (const auto& each : uses) {
    auto of = made_store(engine_, directory_.file(each.name), each.how);
    each.make(of);
    ASSERT_EQ(put_one(of, "x", block).ended, outcome::done) << each.name;
    for (const auto key : keys) EXPECT_EQ(there(of, key), key != each.dropped) << each.name << ": " << key;
  }
}

TEST_F(kv_store, synced_values_make_room_too) {
  const auto of = made_store(engine_, folder_, {.capacity_bytes = 8 * block_bytes});
  for (std::uint64_t i = 0; i < 40; ++i) {
    auto value = value_of(i, 1);
    ASSERT_EQ(put_one(of, key_of(i), value).ended, outcome::done);
    ASSERT_TRUE(of.sync().ok());
    ASSERT_EQ(fetched(of, key_of(i)), value);
  }
}

TEST_F(kv_store, keys_and_lengths_that_cannot_be_are_errors_of_their_keys_alone) {
  const auto of = made_store(engine_, folder_);
  auto value = value_of(1, 1);
  const memory_piece piece{value.data(), value.size()};
  const memory_piece nothing[] = {{value.data(), 0}};
  const memory_piece endless[] = {{value.data(), ~std::uint64_t{0}}, {value.data(), 2}};
  const std::string longest(most_key_bytes, '\xff');
  const std::string longer(most_key_bytes + 1, 'k');
  const std::span one(&piece, 1);
  const auto put = of.put({{"", one}, {longer, one}, {"empty", nothing}, {"endless", endless}, {longest, one}, {"none", {}}});
  for (const std::size_t i : {0U, 1U, 2U, 3U, 5U}) EXPECT_EQ(put[i].error.code(), errc::invalid_argument) << i;
  EXPECT_EQ(put[4].ended, outcome::done) << told(put[4].error);
  EXPECT_NE(put[2].error.message().find("empty"), std::string_view::npos);
  bytes shorter(value.size() - 1);
  const auto got = get_one(of, longest, shorter);
  EXPECT_EQ(got.error.code(), errc::invalid_argument);
  EXPECT_NE(got.error.message().find(std::to_string(value.size())), std::string_view::npos) << told(got.error);
  EXPECT_EQ(fetched(of, longest), value);
}

TEST_F(kv_store, of_a_key_twice_in_a_call_the_later_value_stays) {
  const auto of = made_store(engine_, folder_);
  auto first = value_of(1, 1);
  auto second = value_of(1, 2);
  const memory_piece pieces[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  for (const auto& each : of.put({{"a", std::span(pieces, 1)}, {"a", std::span(pieces + 1, 1)}})) EXPECT_EQ(each.ended, outcome::done);
  EXPECT_EQ(fetched(of, "a"), second);
  EXPECT_EQ(of.stats().keys, 1U);
  const std::string_view twice[] = {"a", "a"};
  const auto gone = of.drop(twice);
  EXPECT_EQ(gone[0].ended, outcome::done);
  EXPECT_EQ(gone[1].ended, outcome::absent);
  EXPECT_EQ(drop_one(of, "a").ended, outcome::absent);
}

TEST_F(kv_store, calls_that_do_not_wait_end_and_call_back) {
  const auto of = made_store(engine_, folder_);
  std::vector<bytes> values;
  for (std::uint64_t i = 0; i < 20; ++i) values.push_back(value_of(i, i + 1));
  std::atomic<int> ended{0};
  std::vector<call> calls;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const memory_piece piece{values[i].data(), values[i].size()};
    const auto key = key_of(i);
    const item one{key, std::span(&piece, 1)};
    calls.push_back(
        of.put_async(std::span(&one, 1), [&](std::span<const key_result> results) { ended += results[0].ended == outcome::done; }));
  }
  for (auto& each : calls) EXPECT_EQ(each.wait()[0].ended, outcome::done) << told(each.wait()[0].error);
  EXPECT_EQ(ended, 20);
  bytes back(values[7].size());
  const memory_piece piece{back.data(), back.size()};
  const item wanted[] = {{"key-7", std::span(&piece, 1)}, {"none", std::span(&piece, 1)}};
  auto running = of.get_async(wanted);
  const auto got = running.wait();
  EXPECT_TRUE(running.done());
  EXPECT_EQ(got[0].ended, outcome::done);
  EXPECT_EQ(got[1].ended, outcome::absent);
  EXPECT_EQ(back, values[7]);
  EXPECT_EQ(of.get_async({}).wait().size(), 0U);
  EXPECT_EQ(of.put_async({}).wait().size(), 0U);
}

TEST_F(kv_store, puts_beyond_the_limit_wait_their_turn_and_keep_their_order) {
  constexpr std::uint64_t most = 40'000;  // any of the values alone
  const auto of = made_store(engine_, folder_, {.capacity_bytes = 64 * block_bytes, .most_put_bytes_under_way = most});
  std::vector<bytes> values;
  for (std::uint64_t i = 0; i < 200; ++i) values.push_back(value_of(i % 5, i + 1));
  std::vector<call> calls;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const memory_piece piece{values[i].data(), values[i].size()};
    const auto key = key_of(i % 5);
    const item one{key, std::span(&piece, 1)};
    calls.push_back(of.put_async(std::span(&one, 1)));
    EXPECT_LE(of.stats().put_bytes_under_way, most);
  }
  for (auto& each : calls) ASSERT_EQ(each.wait()[0].ended, outcome::done) << told(each.wait()[0].error);
  for (std::uint64_t key = 0; key < 5; ++key) EXPECT_EQ(fetched(of, key_of(key)), value_of(key, 196 + key));
  EXPECT_EQ(of.stats().put_bytes_waiting, 0U);
}

TEST_F(kv_store, cancelled_calls_end) {
  const auto of = made_store(engine_, folder_, {.capacity_bytes = 1 << 20, .most_put_bytes_under_way = block_bytes});
  std::vector<bytes> values(50, bytes(5 * block_bytes));
  std::vector<call> calls;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const memory_piece piece{values[i].data(), values[i].size()};
    const auto key = key_of(i);
    const item one{key, std::span(&piece, 1)};
    calls.push_back(of.put_async(std::span(&one, 1)));
  }
  for (auto& each : calls) each.cancel();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto ended = calls[i].wait()[0];
    EXPECT_TRUE(ended.ended == outcome::done || ended.error.code() == errc::cancelled) << told(ended.error);
    EXPECT_EQ(there(of, key_of(i)), ended.ended == outcome::done);
  }
}

TEST_F(kv_store, a_changed_byte_is_seen_and_its_value_dropped) {
  const auto of = made_store(engine_, folder_);
  auto value = value_of(1, 1);
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  {
    std::fstream data(folder_ + "/data", std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(100);
    data.put(static_cast<char>(~std::to_integer<int>(value[100])));
  }
  bytes back(value.size());
  const auto got = get_one(of, "a", back);
  EXPECT_EQ(got.error.code(), errc::io) << told(got.error);
  EXPECT_FALSE(there(of, "a"));
  EXPECT_EQ(of.stats().damaged, 1U);
}

// Checksums of long values are computed later than those of short values.
TEST_F(kv_store, a_changed_byte_in_any_piece_of_one_value_does_not_affect_the_others) {
  constexpr std::size_t long_bytes = (std::size_t{32} << 20) + 5;
  struct value {
    std::size_t length;
    std::optional<std::size_t> changed;
  };
  const std::vector<value> values{{9000, std::nullopt}, {9000, 0}, {9000, 8999}, {long_bytes, std::nullopt}, {long_bytes, long_bytes - 1}};
  for (const bool waits : {true, false}) {
    const std::string folder = folder_ + (waits ? "-get" : "-get_async");
    const auto of = made_store(engine_, folder, {.capacity_bytes = std::uint64_t{72} << 20});
    std::vector<std::string> keys;
    std::vector<bytes> memory;
    std::vector<std::vector<memory_piece>> pieces;  // the second part of each value lies before the first
    for (std::size_t i = 0; i < values.size(); ++i) {
      keys.push_back(key_of(i));
      auto& one = memory.emplace_back(testing::pattern::make(values[i].length, i));
      const std::size_t half = one.size() / 2;
      pieces.push_back({{one.data() + half, one.size() - half}, {one.data(), half}});
    }
    std::vector<item> items;
    for (std::size_t i = 0; i < values.size(); ++i) items.push_back({keys[i], pieces[i]});
    for (const auto& each : of.put(items)) ASSERT_EQ(each.ended, outcome::done) << told(each.error);
    std::fstream data(folder + "/data", std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t offset = 0;
    for (const value& each : values) {
      if (each.changed) {
        const auto at = static_cast<std::streamoff>(offset + *each.changed);
        data.seekg(at);
        const int old = data.get();
        data.seekp(at);
        data.put(static_cast<char>(~old));
      }
      offset += (each.length + block_bytes - 1) / block_bytes * block_bytes;
    }
    data.close();
    const auto expected = memory;
    for (auto& each : memory) std::ranges::fill(each, std::byte{0});
    const auto found = waits ? of.get(items) : of.get_async(items).wait();
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(found[i].ended, values[i].changed ? outcome::failed : outcome::done) << told(found[i].error);
      EXPECT_EQ(memory[i] == expected[i], !values[i].changed);
      EXPECT_EQ(there(of, keys[i]), !values[i].changed);
    }
  }
}

TEST_F(kv_store, one_process_writes_and_the_second_is_told_who) {
  auto of = made_store(engine_, folder_);
  auto second = store::open(engine_, folder_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), errc::would_block);
  EXPECT_NE(second.error().message().find(std::to_string(::getpid())), std::string_view::npos) << told(second.error());
  EXPECT_TRUE(of.close().ok());
  EXPECT_TRUE(store::open(engine_, folder_).ok());
}

TEST_F(kv_store, one_that_is_read_only_sees_what_is_put_dropped_and_written_anew) {
  EXPECT_EQ(store::open(engine_, folder_, {.read_only = true}).error().code(), errc::not_found);
  auto of = made_store(engine_, folder_);
  const auto reader = made_store(engine_, folder_, {.read_only = true});
  auto value = value_of(1, 1);
  EXPECT_FALSE(fetched(reader, "a"));
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  EXPECT_EQ(fetched(reader, "a"), value);
  ASSERT_EQ(drop_one(of, "a").ended, outcome::done);
  EXPECT_FALSE(there(reader, "a"));
  ASSERT_TRUE(of.close().ok());
  of = made_store(engine_, folder_, {.capacity_bytes = 2 << 20});  // grows, with an index of its own
  ASSERT_EQ(put_one(of, "b", value).ended, outcome::done);
  EXPECT_EQ(fetched(reader, "b"), value);
  EXPECT_EQ(reader.stats().capacity_bytes, std::uint64_t{2} << 20);
  EXPECT_EQ(put_one(reader, "c", value).error.code(), errc::permission_denied);
  EXPECT_EQ(drop_one(reader, "b").error.code(), errc::permission_denied);
  EXPECT_EQ(reader.sync().code(), errc::permission_denied);
}

TEST_F(kv_store, a_reader_of_files_that_were_made_anew_is_told) {
  auto value = value_of(1, 1);
  {
    const auto of = made_store(engine_, folder_);
    ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  }
  const auto reader = made_store(engine_, folder_, {.read_only = true});
  EXPECT_EQ(fetched(reader, "a"), value);
  for (const char* name : {"/data", "/index"}) std::filesystem::remove(folder_ + name);
  const auto of = made_store(engine_, folder_);
  ASSERT_EQ(put_one(of, "b", value).ended, outcome::done);
  const auto got = get_one(reader, "b", value);
  EXPECT_EQ(got.error.code(), errc::closed) << told(got.error);
}

TEST_F(kv_store, a_sync_without_puts_writes_nothing) {
  const auto of = made_store(engine_, folder_);
  auto value = value_of(1, 1);
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  ASSERT_TRUE(of.sync().ok());
  const auto size = std::filesystem::file_size(folder_ + "/index");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(of.sync().ok());
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/index"), size);
}

TEST_F(kv_store, a_long_index_is_written_anew) {
  const auto of = made_store(engine_, folder_, {.capacity_bytes = 256 * block_bytes});
  const auto reader = made_store(engine_, folder_, {.read_only = true});
  bytes block(block_bytes);
  const memory_piece piece{block.data(), block.size()};
  const std::string long_key(most_key_bytes, 'k');
  const auto bytes_of_index = [&] { return std::filesystem::file_size(folder_ + "/index"); };
  std::uintmax_t most = 0;
  for (int round = 0; round < 3000; ++round) {
    ASSERT_EQ(of.put({{long_key, std::span(&piece, 1)}})[0].ended, outcome::done);
    most = std::max(most, bytes_of_index());
  }
  EXPECT_LE(most, (std::uintmax_t{1} << 20) + 2048);
  EXPECT_EQ(fetched(reader, long_key), block);
}

TEST_F(kv_store, folders_and_files_that_others_may_write_to_are_refused) {
  ::mkdir(folder_.c_str(), 0700);
  ::chmod(folder_.c_str(), 0770);
  auto open = store::open(engine_, folder_, {.capacity_bytes = 1 << 20});
  EXPECT_EQ(open.error().code(), errc::permission_denied) << told(open.error());
  ::chmod(folder_.c_str(), 0700);
  EXPECT_TRUE(made_store(engine_, folder_).close().ok());
  ::chmod((folder_ + "/data").c_str(), 0622);
  open = store::open(engine_, folder_);
  EXPECT_EQ(open.error().code(), errc::permission_denied) << told(open.error());
  EXPECT_NE(open.error().message().find("data"), std::string_view::npos);
  ::chmod((folder_ + "/data").c_str(), 0600);
  // The root of a user namespace may not have the number to give.
  if (::geteuid() == 0 && ::chown((folder_ + "/index").c_str(), 12345, 12345) == 0) {
    open = store::open(engine_, folder_);
    EXPECT_EQ(open.error().code(), errc::permission_denied) << told(open.error());
    EXPECT_NE(open.error().message().find("12345"), std::string_view::npos);
  }
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(kv_store, a_folder_with_other_files_is_refused_and_left_as_it_was) {
  const std::vector<std::vector<std::string>> foreign = {
      {"data"},    {"lock"},      {"data", "lock"}, {"data", "index", "lock"}, {"index"}, {"notes.txt"}, {"a", "b", "c", "d", "lock"},
      {".hidden"}, {"index.new"},
  };
  for (const auto& names : foreign) {
    const auto folder = directory_.file(fmt::format("foreign-{}", fmt::join(names, "-")));
    std::filesystem::create_directory(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    for (const auto& name : names) std::ofstream(folder + "/" + name) << "of the user: " << name;
    for (const bool read_only : {false, true}) {
      const auto open = store::open(engine_, folder, {.capacity_bytes = 1 << 20, .read_only = read_only});
      ASSERT_FALSE(open.ok()) << folder;
      EXPECT_NE(open.error().message().find(folder), std::string_view::npos) << told(open.error());
    }
    std::size_t seen = 0;
    for (const auto& each : std::filesystem::directory_iterator(folder)) {
      EXPECT_EQ(text_of(each.path()), "of the user: " + each.path().filename().string());
      ++seen;
    }
    EXPECT_EQ(seen, names.size()) << folder;
  }
}

TEST_F(kv_store, folders_that_are_empty_or_whose_making_was_broken_off_become_stores) {
  const auto become = [&](const std::string& name, const std::vector<std::pair<std::string, std::string>>& files) {
    const auto folder = directory_.file(name);
    ::mkdir(folder.c_str(), 0700);
    for (const auto& [file, text] : files) std::ofstream(folder + "/" + file) << text;
    for (const auto& each : std::filesystem::directory_iterator(folder)) ::chmod(each.path().c_str(), 0600);
    auto value = value_of(1, 1);
    const auto of = made_store(engine_, folder);
    EXPECT_EQ(put_one(of, "a", value).ended, outcome::done) << name;
  };
  become("empty", {});
  become("lock-alone", {{"lock", ""}});
  become("without-index", {{"lock", "PSTKVLCK 1\n"}, {"data", "part"}, {"index.new", "part"}});
}

// Its lock has the number of the process alone.
TEST_F(kv_store, a_store_of_the_layout_before_the_locks_magic_number_opens) {
  auto value = value_of(1, 1);
  {
    const auto of = made_store(engine_, folder_);
    ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  }
  for (const char* text : {"4194304\n", ""}) {
    std::ofstream(folder_ + "/lock") << text;
    const auto of = made_store(engine_, folder_);
    EXPECT_EQ(fetched(of, "a"), value);
    EXPECT_EQ(text_of(folder_ + "/lock"), fmt::format("PSTKVLCK {}\n", ::getpid()));
  }
}

TEST_F(kv_store, symbolic_links_of_this_user_are_followed_and_those_of_others_refused) {
  const auto real = directory_.file("real");
  ::mkdir(real.c_str(), 0700);
  const auto link = directory_.file("link");
  ASSERT_EQ(::symlink("real", link.c_str()), 0);
  EXPECT_TRUE(made_store(engine_, link + "/../real/./store").close().ok());
  EXPECT_TRUE(made_store(engine_, link + "/store").close().ok());
  if (::geteuid() != 0 || ::lchown(link.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root can give a link to another user";
  for (const auto& path : {link, link + "/", link + "/store", link + "/new"}) {
    for (const bool read_only : {false, true}) {
      const auto open = store::open(engine_, path, {.capacity_bytes = 1 << 20, .read_only = read_only});
      EXPECT_EQ(open.error().code(), errc::permission_denied) << path << ": " << told(open.error());
      EXPECT_NE(open.error().message().find("12345"), std::string_view::npos) << told(open.error());
    }
  }
  const auto circle = directory_.file("circle");
  ASSERT_EQ(::symlink("circle", circle.c_str()), 0);
  EXPECT_FALSE(store::open(engine_, circle, {.capacity_bytes = 1 << 20}).ok());
}

TEST_F(kv_store, capacities_and_files_that_cannot_be_are_refused_by_name) {
  EXPECT_EQ(store::open(engine_, folder_).error().code(), errc::invalid_argument);
  EXPECT_EQ(store::open(engine_, folder_, {.capacity_bytes = 17}).error().code(), errc::invalid_argument);
  EXPECT_EQ(store::open(engine_, folder_, {.capacity_bytes = ~std::uint64_t{0}}).error().code(), errc::invalid_argument);
  EXPECT_EQ(store::open(engine_, folder_ + "/no/such", {.capacity_bytes = 1 << 20}).error().code(), errc::not_found);
  EXPECT_TRUE(made_store(engine_, folder_).close().ok());
  EXPECT_EQ(store::open(engine_, folder_, {.capacity_bytes = block_bytes}).error().code(), errc::invalid_argument);
  std::filesystem::resize_file(folder_ + "/data", 100);
  const auto open = store::open(engine_, folder_);
  EXPECT_EQ(open.error().code(), errc::io) << told(open.error());
}

TEST_F(kv_store, a_disk_without_room_is_an_error_and_leaves_nothing) {
  const std::string small = directory_.file("small");
  ::mkdir(small.c_str(), 0700);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=256k,mode=0700") != 0) GTEST_SKIP() << "only root can mount a small file system";
  const auto too_large = store::open(engine_, small + "/store", {.capacity_bytes = 1 << 20});
  EXPECT_EQ(too_large.error().code(), errc::no_space) << told(too_large.error());
  EXPECT_FALSE(std::filesystem::exists(small + "/store/data"));
  {
    const auto of = made_store(engine_, small + "/store", {.capacity_bytes = 32 * block_bytes});
    bytes block(block_bytes);
    ASSERT_EQ(put_one(of, "kept", block).ended, outcome::done);
    const std::string filler = small + "/filler";
    std::ofstream(filler) << std::string(256 << 10, 'f');  // as much as there is
    int done = 0;
    key_result last{outcome::done, 0, {}};
    for (; last.ended == outcome::done && done < 5000; ++done) last = put_one(of, std::string(400, 'k'), block);
    EXPECT_EQ(last.error.code(), errc::no_space) << told(last.error);  // the index cannot grow
    EXPECT_EQ(get_one(of, "kept", block).ended, outcome::done);
    std::filesystem::remove(filler);
    EXPECT_EQ(put_one(of, "again", block).ended, outcome::done);
  }
  const auto of = made_store(engine_, small + "/store", {});
  for (const char* key : {"kept", "again"}) EXPECT_TRUE(there(of, key)) << key;
  ::umount2(small.c_str(), MNT_DETACH);
}

TEST_F(kv_store, a_disk_that_fails_costs_the_keys_concerned_and_no_others) {
  auto faulty = std::make_shared<testing::faulty_kernel>();
  auto doors = core::real_seams(quiet_engine());
  doors.kernel = faulty;
  auto made = core::make_engine(quiet_engine(), doors);
  ASSERT_TRUE(made.ok());
  const auto of = made_store(*made, folder_);
  auto old = value_of(1, 1);
  auto value = value_of(1, 2);
  ASSERT_EQ(put_one(of, "a", old).ended, outcome::done);
  for (const char* call : {"pwrite", "ring.write"}) faulty->fail({.call = call, .nth = 1, .error = EIO, .lasting = true});
  EXPECT_EQ(put_one(of, "a", value).error.code(), errc::io);
  EXPECT_EQ(put_one(of, "b", value).error.code(), errc::io);
  faulty->disarm();
  EXPECT_EQ(fetched(of, "a"), old);
  EXPECT_FALSE(there(of, "b"));
  for (const char* call : {"pread", "ring.read"}) faulty->fail({.call = call, .nth = 1, .error = EIO, .lasting = true});
  bytes back(old.size());
  EXPECT_EQ(get_one(of, "a", back).error.code(), errc::io);
  faulty->disarm();
  faulty->fail({.call = "sync_data", .nth = 1, .error = EIO});
  EXPECT_EQ(of.sync().code(), errc::io);
  EXPECT_TRUE(of.sync().ok());
  EXPECT_EQ(fetched(of, "a"), old);
}

TEST_F(kv_store, closing_waits_for_a_get_of_another_thread) {
  testing::gate before;
  auto doors = core::real_seams(quiet_engine());
  doors.kernel = std::make_shared<testing::gated_kernel>(before);
  auto made = core::make_engine(quiet_engine(), doors);
  ASSERT_TRUE(made.ok());
  auto of = made_store(*made, folder_);
  auto value = value_of(1, 1);
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  before.shut({0});
  bytes back(value.size());
  key_result got;
  std::thread getter([&] { got = get_one(of, "a", back); });
  before.await(1);
  std::atomic<bool> is_closed{false};
  std::thread closer([&] {
    EXPECT_TRUE(of.close().ok());
    is_closed.store(true);
  });
  while (of.sync().code() != errc::closed) std::this_thread::yield();
  EXPECT_FALSE(is_closed.load());
  before.open();
  getter.join();
  closer.join();
  EXPECT_EQ(got.ended, outcome::done) << told(got.error);
  EXPECT_EQ(back, value);
}

TEST_F(kv_store, durable_puts_are_durable_when_they_end) {
  auto faulty = std::make_shared<testing::faulty_kernel>();
  auto doors = core::real_seams(quiet_engine());
  doors.kernel = faulty;
  auto made = core::make_engine(quiet_engine(), doors);
  ASSERT_TRUE(made.ok());
  const auto of = made_store(*made, folder_, {.capacity_bytes = 1 << 20, .durable = true});
  auto value = value_of(1, 1);
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  EXPECT_EQ(faulty->count("sync_data"), 1U);
  faulty->fail({.call = "sync_data", .nth = 1, .error = EIO});
  EXPECT_EQ(put_one(of, "b", value).error.code(), errc::io);
  EXPECT_FALSE(there(of, "b"));
}

TEST_F(kv_store, a_forked_child_is_told_and_leaves_the_parents_store_alone) {
  auto of = made_store(engine_, folder_);
  auto value = value_of(1, 1);
  ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  const int seen = testing::run_in_child([&] {
    if (put_one(of, "b", value).error.code() != errc::forked || get_one(of, "a", value).error.code() != errc::forked) return 1;
    if (drop_one(of, "a").error.code() != errc::forked || of.sync().code() != errc::forked || of.stats().keys != 0) return 2;
    if (of.close().code() != errc::forked) return 3;
    { const auto gone = std::move(of); }
    return 0;
  });
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(fetched(of, "a"), value);
  EXPECT_EQ(store::open(engine_, folder_).error().code(), errc::would_block);
}

TEST_F(kv_store, can_be_opened_again_while_a_forked_child_lives_on) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  pid_t child = -1;
  {
    const auto of = made_store(engine_, folder_);
    child = ::fork();
    if (child == 0) {
      char end = 0;
      ::close(ends[1]);
      ::_exit(::read(ends[0], &end, 1) == 0 ? 0 : 1);  // until the parent closes its end
    }
  }
  EXPECT_TRUE(store::open(engine_, folder_).ok());
  ::close(ends[1]);
  int ended = -1;
  EXPECT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  ::close(ends[0]);
}

TEST_F(kv_store, a_folder_that_cannot_be_written_can_be_read) {
  auto value = value_of(1, 1);
  {
    const auto of = made_store(engine_, folder_);
    ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
  }
  if (::mount(folder_.c_str(), folder_.c_str(), nullptr, MS_BIND, nullptr) != 0)
    GTEST_SKIP() << "only root can make a folder read-only for itself";
  ASSERT_EQ(::mount(nullptr, folder_.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_FALSE(store::open(engine_, folder_).ok());
  EXPECT_EQ(fetched(made_store(engine_, folder_, {.read_only = true}), "a"), value);
  ::umount2(folder_.c_str(), MNT_DETACH);
}

TEST_F(kv_store, after_another_start_of_the_machine_what_was_not_synced_is_gone) {
  auto value = value_of(1, 1);
  {
    const auto of = made_store(engine_, folder_);
    ASSERT_EQ(put_one(of, "synced", value).ended, outcome::done);
    ASSERT_TRUE(of.sync().ok());
    ASSERT_EQ(put_one(of, "later", value).ended, outcome::done);
    // As a power cut would leave it: the index of another start, with the last record that was synced.
    std::filesystem::copy_file(folder_ + "/index", directory_.file("index"));
  }
  std::string index;
  {
    std::ifstream from(directory_.file("index"), std::ios::binary);
    index.assign(std::istreambuf_iterator<char>(from), {});
  }
  std::vector<std::byte> records;
  const auto header = parse_header(std::as_bytes(std::span(index)));
  ASSERT_TRUE(header.ok());
  append(records, header->id, {record_kind::boot, "another start", {}});
  index.append(reinterpret_cast<const char*>(records.data()), records.size());
  std::ofstream(folder_ + "/index", std::ios::binary | std::ios::trunc) << index;
  const auto of = made_store(engine_, folder_, {});
  EXPECT_TRUE(there(of, "synced"));
  EXPECT_FALSE(there(of, "later"));
  EXPECT_EQ(fetched(of, "synced"), value);
}

}  // namespace
}  // namespace penstock::kv
