// Batches: any mix of requests submitted at once, each with its own result.
#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "contract/contract_fixture.hpp"

namespace penstock::testing {
namespace {

class batch_contract : public contract_fixture, public ::testing::WithParamInterface<file_home> {
 protected:
  batch_contract() : contract_fixture(engine_options{}, GetParam()) {}
  // Callbacks come after a batch has ended.
  static void await(const std::atomic<int>& called) {
    while (called.load() == 0) std::this_thread::yield();
  }
};

TEST_P(batch_contract, an_empty_batch_ends_at_once) {
  std::atomic<int> called{0};
  auto nothing = engine_of().submit({}, {}, [&](const io_result& outcome) {
    EXPECT_TRUE(outcome.ok());
    EXPECT_EQ(outcome.bytes_done, 0U);
    ++called;
  });
  EXPECT_TRUE(nothing.wait().empty());
  EXPECT_TRUE(nothing.done());
  await(called);
  batch never;
  EXPECT_TRUE(never.done());
  EXPECT_TRUE(never.wait().empty());
}

// The thread of callbacks is then the last to let go of the engine, which no request has given a lane.
TEST_P(batch_contract, an_engine_that_only_called_back_ends) {
  for (int i = 0; i < 300; ++i) {
    auto made = engine::create(engine_options{});
    ASSERT_TRUE(made.ok());
    std::atomic<int> called{0};
    auto nothing = made->submit({}, {}, [&](const io_result&) { ++called; });
    made = status(errc::closed, "gone");
    await(called);
  }
}

TEST_P(batch_contract, many_small_ranges_of_one_file_land_where_they_belong) {
  constexpr std::size_t count = 1000;
  constexpr std::size_t stride = 5000;
  const auto content = make_file("data", 40 * mib);
  const auto from = open("data");
  for (const bool cold : {false, true}) {
    for (const auto place : {memory_place::device, memory_place::pageable}) {
      SCOPED_TRACE(to_string(place) + (cold ? " cold" : " hot"));
      if (cold) drop_cache(name());
      guarded_memory memory(house_, place, count * stride, 3);
      bytes expected(memory.size());
      memory.fill(expected);
      std::minstd_rand random(7);
      std::vector<io_request> asked;
      std::uint64_t total = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t length = i % 3 == 0 ? 4096 : random() % stride + 1;
        const std::uint64_t offset = i % 3 == 0 ? random() % 9000 * 4096 : random() % (content.size() - stride);
        asked.push_back({&from, memory.data() + i * stride, length, static_cast<std::int64_t>(offset), false});
        overlay(expected, i * stride, std::span(content).subspan(offset, length));
        total += length;
      }
      std::atomic<int> called{0};
      auto submitted = engine_of().submit(asked, {}, [&](const io_result& outcome) {
        EXPECT_TRUE(outcome.ok()) << told(outcome.error);
        EXPECT_EQ(outcome.bytes_done, total);
        ++called;
      });
      const auto results = submitted.wait();
      ASSERT_EQ(results.size(), count);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(results[i].ok()) << i << ": " << told(results[i].error);
        EXPECT_EQ(results[i].bytes_done, asked[i].length) << i;
      }
      memory.expect(expected);
      await(called);
      EXPECT_EQ(called.load(), 1);
    }
  }
}

TEST_P(batch_contract, many_small_writes_change_nothing_around_them) {
  constexpr std::size_t count = 600;
  constexpr std::size_t stride = 9001;
  for (const auto place : {memory_place::device, memory_place::aligned}) {
    SCOPED_TRACE(to_string(place));
    auto content = make_file("data", count * stride + 100);
    const auto to = open_for_writing("data", place == memory_place::device);
    guarded_memory memory(house_, place, count * stride, 1);
    const auto source = pattern::make(memory.size(), 77);
    memory.fill(source);
    std::vector<io_request> asked;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t length = i % 7 == 0 ? stride : 1 + i * 13 % 5000;
      asked.push_back({&to, memory.data() + i * stride, length, static_cast<std::int64_t>(i * stride + 50), true});
      overlay(content, i * stride + 50, std::span(source).subspan(i * stride, length));
    }
    for (const auto& outcome : engine_of().submit(asked).wait()) EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    memory.expect_untouched();
    expect_file(name(), content);
  }
}

TEST_P(batch_contract, requests_of_every_kind_travel_together_and_failures_stay_alone) {
  auto first_content = make_file("first", 10 * mib, 1);
  const auto second_content = make_file("second", 3 * mib + 17, 2);
  const auto first = open_for_writing("first");
  const auto second = open("second");
  file closed = open("second");
  ASSERT_TRUE(closed.close().ok());
  guarded_memory on_device(house_, memory_place::device, 8 * mib);
  guarded_memory on_host(house_, memory_place::pageable, 8 * mib, 3);
  guarded_memory to_write(house_, memory_place::device, 2 * mib);
  const auto written = pattern::make(2 * mib, 5);
  to_write.fill(written);

  struct expectation {
    io_request asked;
    std::uint64_t bytes_done;
    errc code;
  };
  const auto end = static_cast<std::int64_t>(second_content.size());
  const std::vector<expectation> cases = {
      {{&first, on_device.data(), 100, 5, false}, 100, errc::ok},
      {{&first, on_device.data() + 4096, 3 * mib, 1, false}, 3 * mib, errc::ok},
      {{&second, on_device.data() + 4 * mib, 4096, 4096, false}, 4096, errc::ok},
      {{&second, on_device.data() + 5 * mib, 4096, end - 10, false}, 10, errc::ok},
      {{&second, on_device.data() + 5 * mib + 8192, 2 * mib, end - 100, false}, 100, errc::ok},
      {{&second, on_device.data() + 7 * mib + 100 * kib, 10, end + 5, false}, 0, errc::ok},
      {{&second, on_host.data(), 1000, 3, false}, 1000, errc::ok},
      {{&second, on_host.data() + mib, 2 * mib, 9, false}, 2 * mib, errc::ok},
      {{&first, to_write.data(), 64 * kib, 4 * mib, true}, 64 * kib, errc::ok},
      {{&first, to_write.data() + 64 * kib, mib, 6 * mib + 1, true}, mib, errc::ok},
      {{&first, on_device.data(), 0, 0, false}, 0, errc::ok},
      {{&second, to_write.data(), 10, 0, true}, 0, errc::permission_denied},
      {{&closed, on_host.data(), 10, 0, false}, 0, errc::closed},
      {{nullptr, on_host.data(), 10, 0, false}, 0, errc::closed},
      {{&first, nullptr, 10, 0, false}, 0, errc::bad_memory},
      {{&first, on_device.data(), 10, -1, false}, 0, errc::invalid_argument},
      {{&first, on_device.data() + 7 * mib, 64 * mib, 0, false}, 0, errc::bad_memory},
  };
  bytes device_expected(on_device.size());
  bytes host_expected(on_host.size());
  on_device.fill(device_expected);
  on_host.fill(host_expected);
  std::vector<io_request> asked;
  std::uint64_t total = 0;
  for (const auto& each : cases) {
    asked.push_back(each.asked);
    total += each.bytes_done;
    if (each.code != errc::ok || each.bytes_done == 0) continue;
    const auto offset = static_cast<std::uint64_t>(each.asked.offset);
    const auto* at = static_cast<const std::byte*>(each.asked.memory);
    if (each.asked.is_write) {
      overlay(first_content, offset, std::span(written).subspan(static_cast<std::size_t>(at - to_write.data()), each.bytes_done));
      continue;
    }
    const auto& content = each.asked.target == &first ? first_content : second_content;
    const bool device = at >= on_device.data() && at < on_device.data() + on_device.size();
    auto& expected = device ? device_expected : host_expected;
    overlay(expected, static_cast<std::size_t>(at - (device ? on_device.data() : on_host.data())),
            std::span(content).subspan(offset, each.bytes_done));
  }

  std::atomic<int> called{0};
  auto submitted = engine_of().submit(asked, {}, [&](const io_result& outcome) {
    EXPECT_EQ(outcome.bytes_done, total);
    EXPECT_EQ(outcome.error.code(), errc::permission_denied) << "the first error, in the order of submission";
    ++called;
  });
  const auto results = submitted.wait();
  ASSERT_EQ(results.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(results[i].error.code(), cases[i].code) << i << ": " << told(results[i].error);
    EXPECT_EQ(results[i].bytes_done, cases[i].bytes_done) << i;
  }
  await(called);
  on_device.expect(device_expected);
  on_host.expect(host_expected);
  to_write.expect_untouched();
  expect_file(name("first"), first_content);
  EXPECT_EQ(submitted.wait().size(), cases.size()) << "again";
}

TEST_P(batch_contract, a_dropped_batch_goes_on) {
  const auto content = make_file("data", 4 * mib);
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  {
    const auto from = open("data");
    std::vector<io_request> asked;
    for (std::uint64_t i = 0; i < 64; ++i)
      asked.push_back({&from, memory.data() + i * 64 * kib, 64 * kib, static_cast<std::int64_t>(i * 64 * kib), false});
    (void)engine_of().submit(asked);
  }  // the file waits for what is under way
  memory.expect(content);
}

TEST_P(batch_contract, cancelled_requests_say_so_and_the_others_are_whole) {
  constexpr std::size_t count = 300;
  const auto content = make_file("data", count * 64 * kib + 4 * mib);
  const auto from = open("data");
  for (int round = 0; round < 4; ++round) {
    drop_cache(name());
    guarded_memory memory(house_, memory_place::device, content.size());
    std::vector<io_request> asked;
    for (std::uint64_t i = 0; i < count; ++i)
      asked.push_back({&from, memory.data() + i * 64 * kib, 64 * kib, static_cast<std::int64_t>(i * 64 * kib), false});
    const std::uint64_t rest = count * 64 * kib;
    asked.push_back({&from, memory.data() + rest, 4 * mib, static_cast<std::int64_t>(rest), false});
    auto submitted = engine_of().submit(asked);
    for (int i = 0; i < round * 300; ++i) std::this_thread::yield();
    submitted.cancel();
    const auto results = submitted.wait();
    ASSERT_EQ(results.size(), asked.size());
    const auto seen = memory.content();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto offset = static_cast<std::size_t>(asked[i].offset);
      EXPECT_TRUE(results[i].ok() || results[i].error.code() == errc::cancelled) << told(results[i].error);
      if (results[i].ok()) {
        EXPECT_EQ(results[i].bytes_done, asked[i].length);
      }
      EXPECT_EQ(std::memcmp(&seen[offset], &content[offset], results[i].bytes_done), 0) << i;
    }
    memory.expect_old_or_new(content, 0);
  }
}

TEST_P(batch_contract, an_expired_deadline_ends_every_request) {
  make_file("data", 4 * mib);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  io_options late;
  late.deadline = deadline_clock::now() - std::chrono::seconds(1);
  const std::array<io_request, 2> asked{{{&from, memory.data(), 100, 0, false}, {&from, memory.data() + 4096, 2 * mib, 0, false}}};
  for (const auto& outcome : engine_of().submit(asked, late).wait()) {
    EXPECT_EQ(outcome.error.code(), errc::timed_out) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, 0U);
  }
  memory.expect_untouched();
}

TEST_P(batch_contract, batches_of_many_threads_do_not_disturb_each_other) {
  constexpr std::size_t threads = 6;
  const auto content = make_file("data", 8 * mib);
  const auto from = open("data");
  std::vector<std::thread> crew;
  for (std::size_t t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      const auto place = t % 2 == 0 ? memory_place::device : memory_place::pageable;
      guarded_memory memory(house_, place, 400 * 4096);
      for (int round = 0; round < 4; ++round) {
        bytes expected(memory.size());
        memory.fill(expected);
        std::vector<io_request> asked;
        for (std::size_t i = 0; i < 400; ++i) {
          const std::uint64_t length = random() % 4096 + 1;
          const std::uint64_t offset = random() % (content.size() - 4096);
          asked.push_back({&from, memory.data() + i * 4096, length, static_cast<std::int64_t>(offset), false});
          overlay(expected, i * 4096, std::span(content).subspan(offset, length));
        }
        auto submitted = engine_of().submit(asked);
        for (const auto& outcome : submitted.wait()) EXPECT_TRUE(outcome.ok()) << told(outcome.error);
        memory.expect(expected);
      }
    });
  }
  for (auto& each : crew) each.join();
}

TEST_P(batch_contract, every_request_is_counted) {
  make_file("data", 4 * mib);
  const auto both = open_for_writing();
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  const std::array<io_request, 4> asked{{{&both, memory.data(), 100, 0, false},
                                         {&both, memory.data() + 4096, 200, 0, false},
                                         {&both, memory.data() + 8192, 2 * mib, 0, false},
                                         {&both, memory.data() + 3 * mib, 300, 4096, true}}};
  for (const auto& outcome : engine_of().submit(asked).wait()) EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  const auto seen = engine_of().stats();
  EXPECT_EQ(seen.reads, 3U);
  EXPECT_EQ(seen.writes, 1U);
  EXPECT_EQ(seen.read_bytes, 2 * mib + 300);
  EXPECT_EQ(seen.written_bytes, 300U);
  EXPECT_EQ(seen.failed, 0U);
}

// What a disk lane has read is copied by whoever looks after copies: the lane itself goes back to its ring.
TEST_P(batch_contract, cold_small_ones_call_back_though_nobody_waits) {
  constexpr std::size_t count = 8;
  constexpr std::size_t length = 128 * kib;
  const auto content = make_file("data", count * length);
  const auto read = open("data");
  guarded_memory memory(house_, memory_place::device, content.size());
  for (int round = 0; round < 20; ++round) {
    drop_cache(name());
    std::latch ended(count + 1);
    std::vector<io_request> requests;
    for (std::size_t i = 0; i < count; ++i) {
      if (i < count / 2) {
        requests.push_back({&read, memory.data() + i * length, length, static_cast<std::int64_t>(i * length), false});
        ended.count_down();  // one for all of the batch, below
      } else {
        (void)read.read_async(memory.data() + i * length, length, static_cast<std::int64_t>(i * length), {},
                              [&](const io_result&) { ended.count_down(); });
      }
    }
    (void)engine_of().submit(requests, {}, [&](const io_result&) { ended.count_down(); });
    ended.wait();
    memory.expect(content);
  }
}

INSTANTIATE_TEST_SUITE_P(on, batch_contract, every_home, name_of_home);

}  // namespace
}  // namespace penstock::testing
