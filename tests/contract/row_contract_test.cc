// Rows: neighbouring reads of a batch that go to many places on a device. They are transferred together, which only changes the time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {
namespace {

// Requests one behind the other in the file, with small gaps, into places of any alignment in memory.
struct row_case {
  std::vector<io_request> asked;
  bytes expected;  // in memory
};

std::vector<std::uint64_t> ragged_lengths(std::uint64_t total, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::uint64_t> lengths;
  for (std::uint64_t sum = 0; sum < total; sum += lengths.back()) {
    const std::uint64_t most = std::array<std::uint64_t, 5>{3, 514, 4096, 768 * kib, 5 * mib}[random() % 5];
    lengths.push_back(random() % most + 1);
  }
  return lengths;
}

class row_contract : public contract_fixture, public ::testing::WithParamInterface<file_home> {
 protected:
  row_contract() : contract_fixture(engine_options{}, GetParam()) {}

  static row_case make_row(const file& from, const bytes& content, std::byte* memory, std::size_t size,
                           const std::vector<std::uint64_t>& lengths, std::uint64_t offset, unsigned seed) {
    std::minstd_rand random(seed);
    row_case made{{}, bytes(size)};
    std::vector<std::size_t> order(lengths.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::size_t> places(lengths.size());
    std::size_t at = random() % 16;
    for (const auto i : order) {
      places[i] = at;
      at += lengths[i] + random() % 300;
    }
    EXPECT_LE(at, size);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      made.asked.push_back({&from, memory + places[i], lengths[i], static_cast<std::int64_t>(offset), false});
      const auto end = std::min<std::uint64_t>(offset + lengths[i], content.size());
      if (end > offset) overlay(made.expected, places[i], std::span(content).subspan(offset, end - offset));
      offset += lengths[i] + (random() % 5 == 0 ? random() % 4097 : 0);
    }
    return made;
  }

  static void expect_whole(const std::vector<io_result>& results, const std::vector<io_request>& asked) {
    ASSERT_EQ(results.size(), asked.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].ok()) << i << ": " << told(results[i].error);
      EXPECT_EQ(results[i].bytes_done, asked[i].length) << i;
    }
  }
};

TEST_P(row_contract, ranges_of_any_size_land_where_they_belong_hot_and_cold) {
  const auto content = make_file("data", 48 * mib);
  const auto from = open("data");
  for (const unsigned seed : {1U, 2U, 3U}) {
    const auto lengths = ragged_lengths(36 * mib, seed);
    for (const bool cold : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << (cold ? " cold" : " hot"));
      if (cold) drop_cache(name());
      guarded_memory memory(house_, memory_place::device, 48 * mib, seed);
      const auto row = make_row(from, content, memory.data(), memory.size(), lengths, seed * 4099, seed);
      bytes expected = row.expected;
      memory.fill(bytes(memory.size()));
      std::vector<std::atomic<int>> told_of(row.asked.size());
      const io_options how{.cache = seed == 2 ? cache_use::fill : cache_use::bypass};
      auto submitted = engine_of().submit(row.asked, how, {}, [&](std::size_t index, const io_result& outcome) {
        EXPECT_TRUE(outcome.ok());
        ++told_of[index];
      });
      expect_whole(submitted.wait(), row.asked);
      for (const auto& each : told_of) EXPECT_EQ(each.load(), 1);
      memory.expect(expected);
    }
  }
}

TEST_P(row_contract, neighbours_in_memory_too_are_one_read) {
  const auto content = make_file("data", 9 * mib + 5);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, content.size());
  std::vector<io_request> asked;
  for (std::uint64_t at = 0; at < content.size(); at += 100 * kib) {
    const auto length = std::min<std::uint64_t>(100 * kib, content.size() - at);
    asked.push_back({&from, memory.data() + at, length, static_cast<std::int64_t>(at), false});
  }
  expect_whole(engine_of().submit(asked).wait(), asked);
  memory.expect(content);
}

TEST_P(row_contract, what_lies_behind_the_end_of_the_file_is_short) {
  const auto content = make_file("data", 5 * mib + 1234);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 12 * mib);
  const std::vector<std::uint64_t> lengths(10, mib + 77);
  const auto row = make_row(from, content, memory.data(), memory.size(), lengths, 3, 1);
  memory.fill(bytes(memory.size()));
  const auto results = engine_of().submit(row.asked).wait();
  ASSERT_EQ(results.size(), lengths.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto offset = static_cast<std::uint64_t>(row.asked[i].offset);
    EXPECT_TRUE(results[i].ok()) << told(results[i].error);
    EXPECT_EQ(results[i].bytes_done, offset < content.size() ? std::min(lengths[i], content.size() - offset) : 0) << i;
  }
  memory.expect(row.expected);
}

TEST_P(row_contract, several_rows_and_others_between_them_travel_in_one_batch) {
  const auto first_content = make_file("first", 12 * mib, 1);
  const auto second_content = make_file("second", 12 * mib, 2);
  const auto first = open("first");
  const auto second = open("second");
  guarded_memory memory(house_, memory_place::device, 64 * mib);
  guarded_memory on_host(house_, memory_place::pageable, 3 * mib);
  bytes expected(memory.size());
  bytes host_expected(on_host.size());
  std::vector<io_request> asked;
  std::size_t at = 1;
  const auto add = [&](const file& from, const bytes& content, std::uint64_t offset, std::uint64_t length) {
    asked.push_back({&from, memory.data() + at, length, static_cast<std::int64_t>(offset), false});
    overlay(expected, at, std::span(content).subspan(offset, length));
    at += length + 13;
  };
  for (std::uint64_t i = 0; i < 40; ++i) add(first, first_content, i * 200 * kib, 200 * kib - 3);
  for (std::uint64_t i = 0; i < 40; ++i) add(second, second_content, i * 200 * kib, 200 * kib);
  for (std::uint64_t i = 40; i > 0; --i) add(first, first_content, i * 200 * kib, 200 * kib);  // backwards: no row
  for (std::uint64_t i = 0; i < 20; ++i) add(first, first_content, 5 * mib, 300 * kib);        // the same again and again
  asked.push_back({&first, memory.data(), 0, 0, false});
  asked.push_back({&second, on_host.data(), 3 * mib, 5, false});
  overlay(host_expected, 0, std::span(second_content).subspan(5, 3 * mib));
  for (std::uint64_t i = 0; i < 300; ++i) add(second, second_content, 7 * mib + i * 9000, 5000);  // too far apart
  memory.fill(bytes(memory.size()));
  on_host.fill(bytes(on_host.size()));
  expect_whole(engine_of().submit(asked).wait(), asked);
  memory.expect(expected);
  on_host.expect(host_expected);
}

TEST_P(row_contract, a_row_that_is_cancelled_or_dropped_leaves_what_it_says) {
  const auto content = make_file("data", 40 * mib);
  for (int round = 0; round < 6; ++round) {
    drop_cache(name());
    auto from = open("data", {.cache = round % 2 == 0 ? cache_use::fill : cache_use::bypass});
    guarded_memory memory(house_, memory_place::device, 64 * mib);
    const auto row = make_row(from, content, memory.data(), memory.size(), ragged_lengths(36 * mib, 4), 0, 4);
    memory.fill(bytes(memory.size()));
    auto submitted = engine_of().submit(row.asked);
    for (int i = 0; i < round * 500; ++i) std::this_thread::yield();
    if (round == 5) {
      submitted = {};
      EXPECT_TRUE(from.close().ok());  // waits for what is under way, which ends before its memory goes
      continue;
    }
    submitted.cancel();
    const auto results = submitted.wait();
    ASSERT_EQ(results.size(), row.asked.size());
    const auto seen = memory.content();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto& asked = row.asked[i];
      EXPECT_TRUE(results[i].bytes_done == asked.length ? results[i].ok() : results[i].error.code() == errc::cancelled)
          << told(results[i].error);
      const auto at = static_cast<std::size_t>(static_cast<std::byte*>(asked.memory) - memory.data());
      EXPECT_EQ(std::memcmp(&seen[at], &content[static_cast<std::size_t>(asked.offset)], results[i].bytes_done), 0) << i;
    }
  }
}

TEST_P(row_contract, every_request_of_a_row_is_counted_once) {
  const auto content = make_file("data", 8 * mib);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 16 * mib);
  const std::vector<std::uint64_t> lengths(70, 100 * kib);
  const auto row = make_row(from, content, memory.data(), memory.size(), lengths, 0, 1);
  const auto before = engine_of().stats();
  expect_whole(engine_of().submit(row.asked).wait(), row.asked);
  const auto after = engine_of().stats();
  EXPECT_EQ(after.reads - before.reads, lengths.size());
  EXPECT_EQ(after.read_bytes - before.read_bytes, lengths.size() * 100 * kib);
  EXPECT_TRUE(engine_of().requests().empty());
}

INSTANTIATE_TEST_SUITE_P(on, row_contract, every_home, name_of_home);

// Where the device has no kernel, or no memory for slabs that arrive there, the bytes come one piece after the other.
class row_fault_contract : public ::testing::Test {
 protected:
  void expect_one_by_one() {
    constexpr std::size_t pieces = 60;
    constexpr std::uint64_t length = 90 * kib + 1;
    const auto content = pattern::make(pieces * length, 3);
    store_file(directory_.file("data"), content);
    const auto from = house_.engine().open(directory_.file("data"));
    ASSERT_TRUE(from.ok()) << told(from.error());
    const guarded_memory memory(house_, memory_place::device, content.size() + pieces * 100);
    std::vector<io_request> asked;
    for (std::size_t i = 0; i < pieces; ++i)
      asked.push_back({&*from, memory.data() + i * (length + 100), length, static_cast<std::int64_t>(i * length), false});
    const auto results = house_.engine().submit(asked).wait();
    const auto seen = memory.content();
    for (std::size_t i = 0; i < pieces; ++i) {
      EXPECT_TRUE(results[i].ok()) << told(results[i].error);
      EXPECT_EQ(std::memcmp(&seen[i * (length + 100)], &content[i * length], length), 0) << i;
    }
    EXPECT_GT(driver_->injected(), 0U);
    EXPECT_GT(house_.engine().stats().path(path_kind::staged).fallbacks, 0U);
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::shared_ptr<device::driver> real_ = device::make_host_driver();
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(real_);
  open_house house_{engine_options{}, core::seams{sys::make_kernel(), nullptr, driver_}};
};

TEST_F(row_fault_contract, the_bytes_arrive_where_there_is_no_kernel) {
  driver_->fail("prepare_scatter", 1, status(errc::unsupported, "no kernel"), faulty_driver::always);
  expect_one_by_one();
}

TEST_F(row_fault_contract, trim_gives_the_memory_back_that_pieces_pass_through) {
  store_file(directory_.file("data"), bytes(4 * mib));
  const auto from = house_.engine().open(directory_.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  const guarded_memory memory(house_, memory_place::device, 5 * mib);
  const auto before = driver_->live().allocations;
  std::vector<io_request> asked;
  for (std::uint64_t at = 0; at < 4 * mib; at += 64 * kib)
    asked.push_back({&*from, memory.data() + at + at / 1024, 64 * kib, static_cast<std::int64_t>(at)});
  for (int round = 0; round < 2; ++round) {
    for (const auto& each : house_.engine().submit(asked).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
    EXPECT_GT(driver_->live().allocations, before);
    // What has ended may count as under way for a moment yet.
    while (driver_->live().allocations > before) (void)house_.engine().trim();
  }
}

// A GPU frees memory when all that runs on it is over, and that may wait for copies which come only then.
TEST_F(row_fault_contract, copies_go_on_while_trim_frees_memory) {
  store_file(directory_.file("data"), bytes(4 * mib));
  const auto from = house_.engine().open(directory_.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  const guarded_memory memory(house_, memory_place::device, 5 * mib);
  std::vector<io_request> asked;
  for (std::uint64_t at = 0; at < 4 * mib; at += 64 * kib)
    asked.push_back({&*from, memory.data() + at + at / 1024, 64 * kib, static_cast<std::int64_t>(at)});
  for (const auto& each : house_.engine().submit(asked).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
  std::atomic<bool> freeing{false};
  std::atomic<bool> copied{false};
  driver_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<status> {
    if (call != "release" || freeing.exchange(true)) return std::nullopt;
    freeing.notify_all();
    copied.wait(false);
    return std::nullopt;
  });
  std::thread trimming([&] {
    while (!freeing) (void)house_.engine().trim();
  });
  freeing.wait(false);
  auto submitted = house_.engine().submit(asked);
  EXPECT_TRUE(submitted.wait_for(std::chrono::seconds(20)));
  copied = true;
  copied.notify_all();
  for (const auto& each : submitted.wait()) EXPECT_TRUE(each.ok()) << told(each.error);
  trimming.join();
  driver_->clear_faults();
}

TEST_F(row_fault_contract, the_bytes_arrive_where_the_device_has_no_memory_left) {
  driver_->fail("allocate", 2, status(errc::out_of_memory, "the device is full"), faulty_driver::always);  // the first is the test's
  expect_one_by_one();
}

}  // namespace
}  // namespace penstock::testing
