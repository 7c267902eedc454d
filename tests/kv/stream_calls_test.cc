// Puts and gets in stream order, on the first GPU, or on the host device if the machine has no GPU.
#include <atomic>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "kv/kv_fixture.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::kv {
namespace {

using testing::mib;
using testing::scoped_stream;
using testing::stream_gate;

class kv_streams : public ::testing::Test {
 protected:
  kv_streams() : kv_streams(core::real_seams({})) {}
  explicit kv_streams(core::seams doors) : house_({}, std::move(doors)) {}

  // The first request of a context loads a kernel, for which the driver waits until all its streams are quiet: before any is held.
  void SetUp() override {
    std::ofstream(directory_.file("first")) << "first";
    const auto first = testing::opened_file(house_.engine(), directory_.file("first"));
    const auto memory = device_copy(bytes(1));
    const std::size_t length = 1;
    const std::int64_t offset = 0;
    PENSTOCK_EXPECT_OK(first.read_on_stream({.memory = memory.data(), .length = &length, .offset = &offset}));
    PENSTOCK_EXPECT_OK(session_.synchronize(nullptr));
  }

  [[nodiscard]] device_buffer device_copy(const bytes& content) {
    auto memory = house_.engine().allocate(house_.device(), content.size());
    EXPECT_TRUE(memory.ok()) << told(memory.error());
    PENSTOCK_EXPECT_OK(house_.engine().copy(memory->data(), content.data(), content.size()));
    return *std::move(memory);
  }
  [[nodiscard]] bytes content_of(const device_buffer& memory) {
    bytes content(memory.size());
    PENSTOCK_EXPECT_OK(house_.engine().copy(content.data(), memory.data(), content.size()));
    return content;
  }
  [[nodiscard]] store made(const store_options& options = {.capacity_bytes = 64 * mib}) {
    return made_store(house_.engine(), folder_, options);
  }
  static call put(const store& to, device::stream on, const std::string& key, const device_buffer& memory) {
    const memory_piece piece{memory.data(), memory.size()};
    return to.put_on_stream(on, {{key, std::span(&piece, 1)}});
  }
  static call get(const store& from, device::stream on, const std::string& key, const device_buffer& memory) {
    const memory_piece piece{memory.data(), memory.size()};
    return from.get_on_stream(on, {{key, std::span(&piece, 1)}});
  }
  static void expect_done(call& running) {
    for (const auto& each : running.wait()) EXPECT_EQ(each.ended, outcome::done) << told(each.error);
  }

  testing::open_house house_;
  device::session& session_ = house_.session();
  testing::temp_dir directory_;
  std::string folder_ = directory_.file("store");
};

TEST_F(kv_streams, a_get_comes_after_earlier_work_and_before_later_work) {
  for (const std::size_t length : {std::size_t{1000}, std::size_t{100'001}, 3 * mib + 5}) {
    auto of = made();
    auto value = testing::pattern::make(length, 1);
    ASSERT_EQ(put_one(of, "a", value).ended, outcome::done);
    const scoped_stream stream(session_);
    stream_gate held(session_);
    const auto memory = device_copy(bytes(length));
    const auto earlier = device_copy(testing::pattern::make(length, 2));
    const auto later = device_copy(bytes(length));
    PENSTOCK_EXPECT_OK(held.close(session_, stream));
    PENSTOCK_EXPECT_OK(session_.copy(memory.data(), earlier.data(), length, stream));
    auto running = get(of, stream, "a", memory);
    PENSTOCK_EXPECT_OK(session_.copy(later.data(), memory.data(), length, stream));
    PENSTOCK_EXPECT_OK(session_.copy(memory.data(), earlier.data(), length, stream));
    EXPECT_FALSE(running.done());
    held.open();
    expect_done(running);
    PENSTOCK_EXPECT_OK(session_.synchronize(stream));
    EXPECT_EQ(content_of(later), value);
    EXPECT_EQ(content_of(memory), content_of(earlier));
    ASSERT_TRUE(of.close().ok());
  }
}

TEST_F(kv_streams, a_put_comes_after_earlier_work_and_before_later_work) {
  auto of = made();
  for (const std::size_t length : {std::size_t{1000}, std::size_t{100'001}, 3 * mib + 5}) {
    const scoped_stream stream(session_);
    stream_gate held(session_);
    const auto memory = device_copy(bytes(length));
    const auto earlier = device_copy(testing::pattern::make(length, 2));
    const auto later = device_copy(bytes(length));
    PENSTOCK_EXPECT_OK(held.close(session_, stream));
    PENSTOCK_EXPECT_OK(session_.copy(memory.data(), earlier.data(), length, stream));
    auto running = put(of, stream, "a", memory);
    PENSTOCK_EXPECT_OK(session_.copy(memory.data(), later.data(), length, stream));
    EXPECT_FALSE(running.done());
    EXPECT_GE(of.stats().put_bytes_under_way, length);
    held.open();
    expect_done(running);
    PENSTOCK_EXPECT_OK(session_.synchronize(stream));
    EXPECT_EQ(fetched(of, "a"), testing::pattern::make(length, 2));
  }
  EXPECT_EQ(of.stats().keys, 1U);
  EXPECT_TRUE(of.close().ok());
  EXPECT_EQ(of.stats().put_bytes_under_way, 0U);
}

TEST_F(kv_streams, a_get_finds_what_was_put_earlier_on_its_stream_and_no_other_get_does) {
  const auto of = made();
  auto old = testing::pattern::make(100'000, 1);
  ASSERT_EQ(put_one(of, "a", old).ended, outcome::done);
  const scoped_stream stream(session_);
  const scoped_stream other(session_);
  stream_gate held(session_);
  const auto source = device_copy(testing::pattern::make(100'000, 2));
  const auto last = device_copy(testing::pattern::make(100'000, 3));
  const auto target = device_copy(bytes(100'000));
  const auto beside = device_copy(bytes(100'000));
  const auto after = device_copy(bytes(100'000));
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  std::vector<call> calls;
  calls.push_back(put(of, stream, "a", source));
  calls.push_back(get(of, stream, "a", target));
  calls.push_back(put(of, stream, "a", last));
  calls.push_back(get(of, stream, "a", after));
  auto elsewhere = get(of, other, "a", beside);
  expect_done(elsewhere);
  EXPECT_EQ(content_of(beside), old);
  EXPECT_EQ(fetched(of, "a"), old);
  held.open();
  for (auto& each : calls) expect_done(each);
  EXPECT_EQ(content_of(target), content_of(source));
  EXPECT_EQ(content_of(after), content_of(last));
  EXPECT_EQ(fetched(of, "a"), content_of(last));
}

TEST_F(kv_streams, values_in_many_pieces_come_back_in_others) {
  const auto of = made();
  const auto value = testing::pattern::make(3 * mib, 4);
  const auto source = device_copy(value);
  const auto target = device_copy(bytes(value.size()));
  auto* const from = static_cast<std::byte*>(source.data());
  auto* const to = static_cast<std::byte*>(target.data());
  const memory_piece written[] = {{from, 5}, {from + 5, 0}, {from + 5, mib}, {from + 5 + mib, value.size() - 5 - mib}};
  std::vector<memory_piece> read;
  for (std::size_t at = 0; at < value.size(); at += 300'000) read.push_back({to + at, std::min(value.size() - at, std::size_t{300'000})});
  std::swap(read[0], read[1]);  // so that neighbours are not merged
  auto stored = of.put_on_stream(nullptr, {{"a", written}});
  auto running = of.get_on_stream(nullptr, {{"a", read}, {"none", read}});
  expect_done(stored);
  const auto got = running.wait();
  EXPECT_EQ(got[0].ended, outcome::done) << told(got[0].error);
  EXPECT_EQ(got[0].bytes, value.size());
  EXPECT_EQ(got[1].ended, outcome::absent);
  auto back = content_of(target);
  std::swap_ranges(back.begin(), back.begin() + 300'000, back.begin() + 300'000);
  EXPECT_EQ(back, value);
  EXPECT_EQ(of.get_on_stream(nullptr, {}).wait().size(), 0U);
  EXPECT_EQ(of.put_on_stream(nullptr, {}).wait().size(), 0U);
}

TEST_F(kv_streams, missing_keys_are_known_while_the_stream_is_busy) {
  const auto of = made();
  const scoped_stream stream(session_);
  stream_gate held(session_);
  const auto memory = device_copy(bytes(1000));
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  std::promise<outcome> ended;
  const memory_piece piece{memory.data(), memory.size()};
  auto running = of.get_on_stream(stream, {{"none", std::span(&piece, 1)}},
                                  [&](std::span<const key_result> results) { ended.set_value(results[0].ended); });
  EXPECT_EQ(running.wait()[0].ended, outcome::absent);
  EXPECT_EQ(ended.get_future().get(), outcome::absent);
  held.open();
  PENSTOCK_EXPECT_OK(session_.synchronize(stream));
}

TEST_F(kv_streams, what_a_stream_cannot_do_is_an_error_of_its_key_alone) {
  const auto of = made({.capacity_bytes = 8 * block_bytes});
  const auto memory = device_copy(testing::pattern::make(4096, 1));
  bytes on_host(4096);
  const memory_piece good{memory.data(), memory.size()};
  const memory_piece host{on_host.data(), on_host.size()};
  const memory_piece mixed[] = {good, host};
  const memory_piece nowhere{nullptr, 100};
  const memory_piece large{memory.data(), 9 * block_bytes};
  const std::span one(&good, 1);
  for (int round = 0; round < 3; ++round) {  // a refused put keeps no room
    auto put = of.put_on_stream(nullptr, {{"good", one},
                                          {"host", std::span(&host, 1)},
                                          {"mixed", mixed},
                                          {"nowhere", std::span(&nowhere, 1)},
                                          {"large", std::span(&large, 1)},
                                          {"", one},
                                          {"last", one}});
    const errc expected[] = {
        errc::ok, errc::unsupported, errc::unsupported, errc::bad_memory, errc::invalid_argument, errc::invalid_argument, errc::ok};
    const auto results = put.wait();
    for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].error.code(), expected[i]) << i << told(results[i].error);
  }
  const memory_piece half{memory.data(), 2048};
  bytes whole = testing::pattern::make(8192, 2);
  ASSERT_EQ(put_one(of, "long", whole).ended, outcome::done);
  auto get = of.get_on_stream(
      nullptr, {{"good", one}, {"good", std::span(&host, 1)}, {"long", mixed}, {"good", std::span(&half, 1)}, {"", one}, {"last", one}});
  const errc expected[] = {errc::ok, errc::unsupported, errc::unsupported, errc::invalid_argument, errc::invalid_argument, errc::ok};
  const auto results = get.wait();
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].error.code(), expected[i]) << i << told(results[i].error);
  bytes all(8 * block_bytes);
  EXPECT_EQ(put_one(of, "all", all).ended, outcome::done);
}

TEST_F(kv_streams, puts_of_a_key_take_effect_in_the_order_of_their_calls) {
  const auto of = made({.capacity_bytes = 64 * block_bytes});
  const scoped_stream stream(session_);
  const scoped_stream other(session_);
  stream_gate held(session_);
  const auto first = device_copy(testing::pattern::make(9000, 1));
  const auto second = device_copy(testing::pattern::make(9000, 2));
  auto third = testing::pattern::make(9000, 3);
  const auto target = device_copy(bytes(9000));
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  for (const bool by_stream : {true, false}) {
    auto slow = put(of, stream, "a", first);
    auto also = put(of, stream, "b", first);
    if (by_stream) {
      auto fast = put(of, other, "a", second);
      expect_done(fast);
    } else {
      ASSERT_EQ(put_one(of, "a", third).ended, outcome::done);
    }
    const auto now = by_stream ? content_of(second) : third;
    EXPECT_EQ(fetched(of, "a"), now);
    auto got = get(of, stream, "a", target);
    if (!by_stream) {
      ASSERT_EQ(drop_one(of, "a").ended, outcome::done);
    }
    held.open();
    expect_done(slow);
    expect_done(also);
    expect_done(got);
    EXPECT_EQ(content_of(target), now);
    EXPECT_EQ(fetched(of, "a"), by_stream ? std::optional(now) : std::nullopt);
    EXPECT_EQ(fetched(of, "b"), content_of(first));
    PENSTOCK_EXPECT_OK(session_.synchronize(stream));
    held.shut();
    PENSTOCK_EXPECT_OK(held.close(session_, stream));
  }
  held.open();
  PENSTOCK_EXPECT_OK(session_.synchronize(stream));
  bytes all(64 * block_bytes);
  EXPECT_EQ(put_one(of, "all", all).ended, outcome::done) << "the replaced values have kept their room";
}

TEST_F(kv_streams, of_a_key_twice_in_a_call_the_later_value_stays) {
  const auto of = made();
  const auto first = device_copy(testing::pattern::make(9000, 1));
  const auto second = device_copy(testing::pattern::make(5000, 2));
  const memory_piece pieces[] = {{first.data(), first.size()}, {second.data(), second.size()}};
  auto running = of.put_on_stream(nullptr, {{"a", std::span(pieces, 1)}, {"a", std::span(pieces + 1, 1)}});
  expect_done(running);
  EXPECT_EQ(fetched(of, "a"), content_of(second));
  EXPECT_EQ(of.stats().keys, 1U);
}

TEST_F(kv_streams, neither_eviction_nor_replacement_changes_what_a_queued_get_reads) {
  const auto of = made({.capacity_bytes = 4 * block_bytes});
  auto value = testing::pattern::make(block_bytes, 1);
  bytes other(block_bytes);
  for (const char* key : {"a", "b"}) ASSERT_EQ(put_one(of, key, value).ended, outcome::done);
  const scoped_stream stream(session_);
  stream_gate held(session_);
  const auto replaced = device_copy(bytes(block_bytes));
  const auto kept = device_copy(bytes(block_bytes));
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  auto first = get(of, stream, "a", replaced);
  auto second = get(of, stream, "b", kept);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(put_one(of, "a", other).ended, outcome::done);
    ASSERT_EQ(put_one(of, key_of(i), other).ended, outcome::done);
  }
  held.open();
  expect_done(first);
  expect_done(second);
  EXPECT_EQ(content_of(replaced), value);
  EXPECT_EQ(content_of(kept), value);
  bytes all(4 * block_bytes);
  EXPECT_EQ(put_one(of, "all", all).ended, outcome::done);
}

TEST_F(kv_streams, queued_puts_keep_their_room_until_they_complete) {
  const auto of = made({.capacity_bytes = 4 * block_bytes});
  bytes old(block_bytes);
  ASSERT_EQ(put_one(of, "old", old).ended, outcome::done);
  const scoped_stream stream(session_);
  stream_gate held(session_);
  const auto memory = device_copy(testing::pattern::make(4 * block_bytes, 1));
  const auto more = device_copy(bytes(1));
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  auto running = put(of, stream, "all", memory);
  auto refused = put(of, stream, "more", more);
  EXPECT_EQ(refused.wait()[0].error.code(), errc::no_space) << told(refused.wait()[0].error);
  EXPECT_EQ(put_one(of, "more", old).error.code(), errc::no_space);
  held.open();
  expect_done(running);
  EXPECT_EQ(fetched(of, "all"), content_of(memory));
  EXPECT_EQ(put_one(of, "more", old).ended, outcome::done);
}

TEST_F(kv_streams, closing_waits_for_queued_calls) {
  const auto source = device_copy(testing::pattern::make(100'000, 1));
  const auto target = device_copy(bytes(100'000));
  const scoped_stream stream(session_);
  stream_gate held(session_);
  call stored;
  call got;
  {
    auto of = made({.capacity_bytes = 1 * mib, .durable = true});
    PENSTOCK_EXPECT_OK(held.close(session_, stream));
    stored = put(of, stream, "a", source);
    got = get(of, stream, "a", target);
    std::thread opens([&] { held.open(); });
    EXPECT_TRUE(of.close().ok());
    EXPECT_TRUE(stored.running().done() || stored.wait_for(std::chrono::hours(1)));
    auto late = put(of, stream, "b", source);
    EXPECT_EQ(late.wait()[0].error.code(), errc::closed);
    EXPECT_EQ(get(of, stream, "a", target).wait()[0].error.code(), errc::closed);
    opens.join();
  }
  expect_done(stored);
  expect_done(got);
  EXPECT_EQ(content_of(target), content_of(source));
  EXPECT_EQ(fetched(made({}), "a"), content_of(source));
}

TEST_F(kv_streams, a_reader_gets_in_stream_order_and_does_not_put) {
  auto of = made();
  const auto memory = device_copy(testing::pattern::make(100'000, 1));
  auto stored = put(of, nullptr, "a", memory);
  expect_done(stored);
  const auto reader = made({.read_only = true});
  const auto target = device_copy(bytes(100'000));
  auto got = get(reader, nullptr, "a", target);
  expect_done(got);
  EXPECT_EQ(content_of(target), content_of(memory));
  EXPECT_EQ(put(reader, nullptr, "b", memory).wait()[0].error.code(), errc::permission_denied);
}

TEST_F(kv_streams, a_changed_byte_is_seen_in_memory_that_the_cpu_can_access) {
  if (house_.on_gpu()) GTEST_SKIP() << "the CPU does not access the memory of a GPU";
  const auto of = made();
  auto value = testing::pattern::make(mib, 1);
  for (const char* key : {"a", "b"}) ASSERT_EQ(put_one(of, key, value).ended, outcome::done);
  {
    std::fstream data(folder_ + "/data", std::ios::in | std::ios::out | std::ios::binary);
    data.seekp(100);
    data.put(static_cast<char>(~std::to_integer<int>(value[100])));
  }
  const auto target = device_copy(bytes(2 * mib));
  auto* const at = static_cast<std::byte*>(target.data());
  const memory_piece pieces[] = {{at, mib}, {at + mib, mib}};
  const auto zeros = device_copy(bytes(2 * mib));
  auto running = of.get_on_stream(nullptr, {{"a", std::span(pieces, 1)}, {"b", std::span(pieces + 1, 1)}});
  PENSTOCK_EXPECT_OK(session_.copy(target.data(), zeros.data(), 2 * mib, nullptr));  // does not count as damage
  const auto got = running.wait();
  EXPECT_EQ(got[0].error.code(), errc::io) << told(got[0].error);
  EXPECT_EQ(got[1].ended, outcome::done) << told(got[1].error);
  EXPECT_FALSE(there(of, "a"));
  EXPECT_EQ(of.stats().damaged, 1U);
}

TEST_F(kv_streams, many_keys_on_two_streams_keep_their_values) {
  constexpr std::size_t slots = 64;
  constexpr std::size_t slot_bytes = 40'000;
  const auto of = made();
  const scoped_stream first(session_);
  const scoped_stream second(session_);
  std::mt19937 random(7);
  std::vector<std::uint64_t> versions(slots, 0);
  std::deque<device_buffer> memory;
  std::vector<call> calls;
  struct expected {
    const device_buffer* memory;
    bytes content;
  };
  std::vector<expected> reads;
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t slot = random() % slots;
    const device::stream stream = slot % 2 == 0 ? first : second;
    if (versions[slot] == 0 || random() % 2 == 0) {
      ++versions[slot];
      memory.push_back(device_copy(testing::pattern::make(slot_bytes, versions[slot] * slots + slot)));
      calls.push_back(put(of, stream, key_of(slot), memory.back()));
    } else {
      memory.push_back(device_copy(bytes(slot_bytes)));
      calls.push_back(get(of, stream, key_of(slot), memory.back()));
      reads.push_back({&memory.back(), testing::pattern::make(slot_bytes, versions[slot] * slots + slot)});
    }
  }
  for (auto& each : calls) expect_done(each);
  for (const auto& each : reads) EXPECT_EQ(content_of(*each.memory), each.content);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const auto last = testing::pattern::make(slot_bytes, versions[slot] * slots + slot);
    EXPECT_EQ(fetched(of, key_of(slot)), versions[slot] > 0 ? std::optional(last) : std::nullopt);
  }
}

// --- failures

class faulty_kv_streams : public kv_streams {
 protected:
  faulty_kv_streams() : faulty_kv_streams(core::real_seams({})) {}

  std::shared_ptr<testing::faulty_kernel> kernel_;
  std::shared_ptr<testing::faulty_driver> driver_;

 private:
  explicit faulty_kv_streams(core::seams doors)
      : faulty_kv_streams(std::make_shared<testing::faulty_kernel>(doors.kernel), std::make_shared<testing::faulty_driver>(doors.host),
                          doors) {}
  faulty_kv_streams(std::shared_ptr<testing::faulty_kernel> kernel, std::shared_ptr<testing::faulty_driver> driver, core::seams doors)
      : kv_streams((doors.kernel = kernel, doors.host = driver, doors.cuda = nullptr, std::move(doors))),
        kernel_(std::move(kernel)),
        driver_(std::move(driver)) {}
};

TEST_F(faulty_kv_streams, a_put_that_fails_keeps_the_old_value_and_fails_the_get_behind_it) {
  const auto of = made({.capacity_bytes = 64 * block_bytes});
  auto old = testing::pattern::make(100'000, 1);
  ASSERT_EQ(put_one(of, "a", old).ended, outcome::done);
  const auto source = device_copy(testing::pattern::make(100'000, 2));
  const auto target = device_copy(bytes(100'000));
  const scoped_stream stream(session_);
  stream_gate held(session_);
  PENSTOCK_EXPECT_OK(held.close(session_, stream));
  auto stored = put(of, stream, "a", source);
  auto got = get(of, stream, "a", target);
  kernel_->fail({.call = "pwrite", .error = ENOSPC});
  held.open();
  EXPECT_EQ(stored.wait()[0].error.code(), errc::no_space) << told(stored.wait()[0].error);
  EXPECT_EQ(got.wait()[0].error.code(), errc::io) << told(got.wait()[0].error);
  EXPECT_EQ(fetched(of, "a"), old);
  auto again = get(of, stream, "a", target);
  expect_done(again);
  EXPECT_EQ(content_of(target), old);
  bytes all(64 * block_bytes);
  EXPECT_EQ(put_one(of, "all", all).ended, outcome::done);
}

TEST_F(faulty_kv_streams, a_get_that_fails_fails_alone) {
  const auto of = made();
  std::vector<bytes> values;
  std::vector<device_buffer> targets;
  for (std::uint64_t i = 0; i < 3; ++i) {
    values.push_back(testing::pattern::make(100'000, i));
    targets.push_back(device_copy(bytes(100'000)));
    ASSERT_EQ(put_one(of, key_of(i), values[i]).ended, outcome::done);
  }
  for (std::uint64_t nth = 1; nth <= 3; ++nth) {
    std::vector<memory_piece> pieces;
    for (const auto& each : targets) pieces.push_back({each.data(), each.size()});
    kernel_->fail({.call = "pread", .nth = nth});
    auto running = of.get_on_stream(
        nullptr, {{"key-0", std::span(&pieces[0], 1)}, {"key-1", std::span(&pieces[1], 1)}, {"key-2", std::span(&pieces[2], 1)}});
    const auto got = running.wait();
    std::size_t failed = 0;
    for (std::uint64_t i = 0; i < 3; ++i) {
      failed += got[i].error.code() == errc::io ? 1 : 0;
      EXPECT_TRUE(got[i].ended == outcome::failed || content_of(targets[i]) == values[i]) << told(got[i].error);
    }
    EXPECT_EQ(failed, 1U) << nth;
    kernel_->disarm();
  }
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(fetched(of, key_of(i)), values[i]);
}

// Every call of the driver fails once: a value is stored and fetched as a whole, or its key fails; and the room of failed puts is free.
TEST_F(faulty_kv_streams, a_device_that_fails_fails_keys_and_nothing_else) {
  const auto of = made({.capacity_bytes = 16 * mib});
  const auto value = testing::pattern::make(2 * mib, 1);
  const auto source = device_copy(value);
  const auto target = device_copy(bytes(value.size()));
  const auto beside = device_copy(bytes(mib));
  auto* const from = static_cast<std::byte*>(source.data());
  auto* const to = static_cast<std::byte*>(target.data());
  const memory_piece written[] = {{from, 1000}, {from + mib, mib}, {from + 1000, mib - 1000}};
  const memory_piece read[] = {{to, 1000}, {to + mib, mib}, {to + 1000, mib - 1000}};
  const memory_piece other{beside.data(), mib};
  bytes rearranged(value.begin(), value.begin() + 1000);
  rearranged.insert(rearranged.end(), value.begin() + mib, value.end());
  rearranged.insert(rearranged.end(), value.begin() + 1000, value.begin() + mib);
  std::uint64_t failed = 0;
  for (std::uint64_t n = 1; n <= 40; ++n) {
    for (const char* key : {"a", "b"}) (void)drop_one(of, key);
    driver_->fail_any(n, {errc::device, "injected"});
    auto stored = of.put_on_stream(nullptr, {{"a", written}, {"b", std::span(written + 1, 1)}});
    auto got = of.get_on_stream(nullptr, {{"a", read}, {"b", std::span(&other, 1)}});
    const auto put_results = stored.wait();
    const auto get_results = got.wait();
    driver_->clear_faults();
    PENSTOCK_EXPECT_OK(session_.synchronize(nullptr));
    for (const auto& each : put_results) failed += each.ended == outcome::failed ? 1 : 0;
    EXPECT_EQ(there(of, "a"), put_results[0].ended == outcome::done) << n;
    EXPECT_EQ(there(of, "b"), put_results[1].ended == outcome::done) << n;
    EXPECT_EQ(fetched(of, "a"), there(of, "a") ? std::optional(rearranged) : std::nullopt) << n;
    EXPECT_TRUE(get_results[0].ended != outcome::done || content_of(target) == value) << n;
  }
  EXPECT_GT(failed, 0U);
  bytes all(16 * mib);
  EXPECT_EQ(put_one(of, "all", all).ended, outcome::done);
}

}  // namespace
}  // namespace penstock::kv
