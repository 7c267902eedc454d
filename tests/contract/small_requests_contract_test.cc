// Small asynchronous requests, which are grouped if they arrive together. A gate before the reads of their source makes them wait.
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "support/gated_kernel.hpp"

namespace penstock::testing::small_requests {
namespace {

constexpr std::uint64_t small = 4 * kib;

class small_requests_contract : public ::testing::TestWithParam<file_home> {
 protected:
  static constexpr unsigned lanes = 2;
  static constexpr std::uint64_t blocks = 512;

  small_requests_contract() {
    content_ = pattern::make(blocks * small + 100, 1);
    on_disk_ ? store_file(name_, content_) : in_memory_.put(name_, content_);
    engine_options options;
    options.lanes = lanes;
    auto doors = core::real_seams(options);
    doors.kernel = std::make_shared<gated_kernel>(gate_);
    house_.emplace(options, std::move(doors));
    auto opened = open(name_);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    if (opened.ok()) file_.emplace(*std::move(opened));
  }
  ~small_requests_contract() override { gate_.open(); }

  result<file> open(const std::string& name) {
    const open_options both{.read = true, .write = true, .create = true};
    return on_disk_ ? house_->engine().open(name, both) : in_memory_.open(house_->engine(), name, both);
  }

  static std::int64_t offset_of(std::uint64_t block) { return static_cast<std::int64_t>(block * small); }
  [[nodiscard]] std::uint64_t pieces() {
    const auto seen = house_->engine().stats();
    std::uint64_t total = 0;
    for (const auto& path : seen.by_path) total += path.operations;
    return total;
  }
  // Keeps every lane at a read of one of the first blocks.
  std::vector<operation> occupy_lanes(guarded_memory& memory) {
    std::set<std::uint64_t> held;
    for (std::uint64_t i = 0; i < lanes; ++i) held.insert(i * small);
    gate_.shut(held);
    std::vector<operation> made;
    for (std::uint64_t i = 0; i < lanes; ++i) {
      made.push_back(file_->read_async(memory.data() + i * small, small, offset_of(i)));
      gate_.await(i + 1);
    }
    return made;
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
  const bool on_disk_ = GetParam() == file_home::disk;
  gate gate_;
  memory_files in_memory_{GetParam() == file_home::cached_memory,
                          [this](bool is_write, std::uint64_t offset) { return is_write ? status() : gate_.pass(offset); }};
  std::optional<open_house> house_;
  std::optional<file> file_;
};

TEST_P(small_requests_contract, what_waits_for_a_lane_travels_together) {
  for (const auto place : {memory_place::device, memory_place::pageable}) {
    SCOPED_TRACE(to_string(place));
    guarded_memory memory(*house_, place, blocks * small, 3);
    const auto before = pieces();
    auto under_way = occupy_lanes(memory);
    for (std::uint64_t i = lanes; i < blocks; ++i) under_way.push_back(file_->read_async(memory.data() + i * small, small, offset_of(i)));
    gate_.open();
    for (auto& each : under_way) {
      const auto outcome = each.wait();
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, small);
    }
    memory.expect(std::span(content_).first(blocks * small));
    EXPECT_LE(pieces() - before, 16U) << "512 requests; a lane that is alone at work takes half of what waits at a time";
  }
  const auto seen = house_->engine().stats();
  EXPECT_EQ(seen.reads, 2 * blocks);
  EXPECT_EQ(seen.read_bytes, 2 * blocks * small);
}

TEST_P(small_requests_contract, none_waits_for_another_while_there_are_lanes) {
  guarded_memory memory(*house_, memory_place::device, 2 * small);
  gate_.shut({0});
  auto held = file_->read_async(memory.data(), small, 0);
  gate_.await(1);
  EXPECT_EQ(file_->read_async(memory.data() + small, small, offset_of(1)).wait().bytes_done, small);
  EXPECT_FALSE(held.done());
  gate_.open();
  EXPECT_EQ(held.wait().bytes_done, small);
  memory.expect(std::span(content_).first(2 * small));
}

TEST_P(small_requests_contract, of_every_kind_they_end_each_on_its_own) {
  guarded_memory on_device(*house_, memory_place::device, 64 * small);
  guarded_memory on_host(*house_, memory_place::pageable, 64 * small);
  bytes device_expected(on_device.size());
  bytes host_expected(on_host.size());
  on_device.fill(device_expected);
  on_host.fill(host_expected);
  guarded_memory source(*house_, memory_place::device, 2 * small);
  const auto written = pattern::make(2 * small, 5);
  source.fill(written);
  auto other = open(directory_.file("other"));
  ASSERT_TRUE(other.ok());
  gate_.fail(20 * small);
  const auto end = static_cast<std::int64_t>(content_.size());
  struct expectation {
    const file* target;
    std::byte* memory;
    std::uint64_t length;
    std::int64_t offset;
    bool is_write;
    std::uint64_t bytes_done;
    errc code;
  };
  auto* const device = on_device.data();
  auto* const host = on_host.data();
  const std::vector<expectation> cases = {
      {&*file_, device + 10 * small, small, offset_of(10), false, small, errc::ok},
      {&*file_, host + 10 * small, 100, offset_of(10) + 1, false, 100, errc::ok},
      {&*file_, device + 20 * small, small, offset_of(20), false, 0, errc::io},
      {&*file_, device + 21 * small, small, end - 10, false, 10, errc::ok},
      {&*file_, device + 22 * small, small, end + 10, false, 0, errc::ok},
      {&*file_, host + 22 * small, small, end - 7, false, 7, errc::ok},
      {&*file_, device + 23 * small, 32 * small, offset_of(30), false, 32 * small, errc::ok},
      {&*other, source.data(), small, 0, true, small, errc::ok},
      {&*other, source.data() + small, small, offset_of(1), true, small, errc::ok},
      {&*file_, device + 63 * small, 3 * small, 0, false, 0, errc::bad_memory},
      {&*file_, nullptr, 10, 0, false, 0, errc::bad_memory},
      {&*file_, device, 10, -1, false, 0, errc::invalid_argument},
      {&*file_, device, 0, 0, false, 0, errc::ok},
  };
  guarded_memory first(*house_, memory_place::device, lanes * small);
  auto occupied = occupy_lanes(first);
  std::vector<operation> under_way;
  for (const auto& each : cases) {
    under_way.push_back(each.is_write ? each.target->write_async(each.memory, each.length, each.offset)
                                      : each.target->read_async(each.memory, each.length, each.offset));
  }
  gate_.open();
  for (auto& each : occupied) EXPECT_TRUE(each.wait().ok());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& each = cases[i];
    const auto outcome = under_way[i].wait();
    EXPECT_EQ(outcome.error.code(), each.code) << i << ": " << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, each.bytes_done) << i;
    if (!outcome.ok()) {
      EXPECT_NE(outcome.error.message().find(each.target->path()), std::string_view::npos) << told(outcome.error);
    } else if (!each.is_write && each.bytes_done > 0) {
      const bool in_device = each.memory >= device && each.memory < device + on_device.size();
      overlay(in_device ? device_expected : host_expected, static_cast<std::size_t>(each.memory - (in_device ? device : host)),
              std::span(content_).subspan(static_cast<std::size_t>(each.offset), each.bytes_done));
    }
  }
  on_device.expect(device_expected);
  on_host.expect(host_expected);
  expect_same(on_disk_ ? contents_of(directory_.file("other")) : in_memory_.get(directory_.file("other")), written);
  source.expect_untouched();
}

TEST_P(small_requests_contract, those_that_are_stopped_do_not_disturb_the_others) {
  constexpr std::uint64_t count = 60;
  constexpr std::array ends = {errc::ok, errc::timed_out, errc::cancelled};
  for (const auto place : {memory_place::device, memory_place::pageable}) {
    SCOPED_TRACE(to_string(place));
    guarded_memory first(*house_, place, lanes * small);
    guarded_memory memory(*house_, place, count * small);
    bytes expected(memory.size());
    memory.fill(expected);
    io_options soon;
    soon.deadline = deadline_clock::now() + std::chrono::milliseconds(20);
    auto occupied = occupy_lanes(first);
    std::vector<operation> under_way;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto options = i % 3 == 1 ? soon : io_options{};
      under_way.push_back(file_->read_async(memory.data() + i * small, small, offset_of(100 + i), options));
    }
    for (std::uint64_t i = 2; i < count; i += 3) under_way[i].cancel();
    while (deadline_clock::now() < soon.deadline) std::this_thread::yield();
    gate_.open();
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto outcome = under_way[i].wait();
      EXPECT_EQ(outcome.error.code(), ends.at(i % 3)) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, i % 3 == 0 ? small : 0U);
      if (i % 3 == 0) overlay(expected, i * small, std::span(content_).subspan((100 + i) * small, small));
    }
    for (auto& each : occupied) EXPECT_TRUE(each.wait().ok());
    memory.expect(expected);
  }
  const auto seen = house_->engine().stats();
  EXPECT_EQ(seen.cancelled, 2 * count / 3);
  EXPECT_EQ(seen.timed_out, 2 * count / 3);
}

TEST_P(small_requests_contract, closing_the_file_waits_for_those_that_wait) {
  guarded_memory memory(*house_, memory_place::device, 100 * small);
  auto under_way = occupy_lanes(memory);
  for (std::uint64_t i = lanes; i < 100; ++i) under_way.push_back(file_->read_async(memory.data() + i * small, small, offset_of(i)));
  std::thread opener([this] { gate_.open(); });
  EXPECT_TRUE(file_->close().ok());
  opener.join();
  memory.expect(std::span(content_).first(100 * small));
  for (auto& each : under_way) EXPECT_EQ(each.wait().bytes_done, small);
}

TEST_P(small_requests_contract, each_calls_back_once_and_may_start_another) {
  constexpr std::uint64_t count = 300;
  guarded_memory memory(*house_, memory_place::device, 2 * count * small);
  std::atomic<std::uint64_t> first{0};
  std::atomic<std::uint64_t> second{0};
  for (std::uint64_t i = 0; i < count; ++i) {
    (void)file_->read_async(memory.data() + i * small, small, offset_of(i), {}, [&, i](const io_result& outcome) {
      EXPECT_EQ(outcome.bytes_done, small) << told(outcome.error);
      ++first;
      (void)file_->read_async(memory.data() + (count + i) * small, small, offset_of(i), {}, [&](const io_result& next) {
        EXPECT_EQ(next.bytes_done, small) << told(next.error);
        ++second;
      });
    });
  }
  while (second.load() < count) std::this_thread::yield();
  EXPECT_EQ(first.load(), count);
  bytes expected(2 * count * small);
  overlay(expected, 0, std::span(content_).first(count * small));
  overlay(expected, count * small, std::span(content_).first(count * small));
  memory.expect(expected);
}

// The file and the engine go while requests are under way, which keep what they need; the last of it goes on a thread of the engine.
TEST_P(small_requests_contract, dropped_ones_go_on_without_file_and_engine) {
  constexpr std::uint64_t count = 200;
  std::vector<std::byte> memory(count * small);
  std::atomic<std::uint64_t> ended{0};
  auto shared = std::make_shared<file>(*std::move(file_));
  file_.reset();
  house_->end();
  for (std::uint64_t i = 0; i < count; ++i) {
    (void)shared->read_async(memory.data() + i * small, small, offset_of(i), {}, [&, shared](const io_result& outcome) {
      EXPECT_EQ(outcome.bytes_done, small) << told(outcome.error);
      ++ended;
    });
  }
  shared.reset();
  while (ended.load() < count) std::this_thread::yield();
  EXPECT_EQ(std::memcmp(memory.data(), content_.data(), memory.size()), 0);
}

TEST_P(small_requests_contract, of_many_threads_all_arrive) {
  constexpr std::size_t threads = 6;
  std::vector<std::thread> crew;
  for (std::size_t t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      const auto place = t % 2 == 0 ? memory_place::device : memory_place::pageable;
      guarded_memory memory(*house_, place, blocks * small);
      for (int round = 0; round < 3; ++round) {
        memory.fill(bytes(memory.size()));
        std::vector<operation> under_way;
        for (std::uint64_t i = 0; i < blocks; ++i) {
          under_way.push_back(file_->read_async(memory.data() + i * small, small, offset_of(i)));
          if (i % 50 == 0) std::this_thread::yield();
        }
        for (auto& each : under_way) EXPECT_EQ(each.wait().bytes_done, small);
        memory.expect(std::span(content_).first(blocks * small));
      }
    });
  }
  for (auto& each : crew) each.join();
}

// Of far sources nothing is gathered.
INSTANTIATE_TEST_SUITE_P(on, small_requests_contract, ::testing::Values(file_home::disk, file_home::memory, file_home::cached_memory),
                         name_of_home);

}  // namespace
}  // namespace penstock::testing::small_requests
