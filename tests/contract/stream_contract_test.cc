// Requests in the order of a device stream.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "support/faulty_device.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {
namespace {

// A read whose values are fixed: they go with this call.
status read_fixed(const file& from, device::stream stream, std::byte* memory, std::size_t length, std::int64_t offset,
                  std::int64_t* bytes_done, bool told_early = true) {
  return from.read_on_stream({.stream = stream,
                              .memory = memory,
                              .length = &length,
                              .offset = &offset,
                              .bytes_done = bytes_done,
                              .constant_arguments = true,
                              .told_early = told_early});
}

class stream_contract : public contract_fixture, public ::testing::WithParamInterface<file_home> {
 protected:
  stream_contract() : contract_fixture(engine_options{}, GetParam()) {}

  // The values that a stream-ordered request reads when the stream gets there, and writes when it has ended.
  struct values {
    std::size_t length = 0;
    std::int64_t offset = 0;
    std::int64_t memory_offset = 0;
    std::int64_t bytes_done = -77;
    [[nodiscard]] stream_request on(device::stream stream, void* memory) {
      return {.stream = stream,
              .memory = memory,
              .length = &length,
              .offset = &offset,
              .memory_offset = &memory_offset,
              .bytes_done = &bytes_done};
    }
  };

  using gate = stream_gate;

  // The first request of a context loads a kernel, for which the driver waits until all its streams are quiet: before any is held.
  void SetUp() override {
    contract_fixture::SetUp();
    make_file("first", 1);
    const auto first = open("first");
    const guarded_memory memory(house_, memory_place::device, 1);
    values now{.length = 1};
    PENSTOCK_EXPECT_OK(first.read_on_stream(now.on(nullptr, memory.data())));
    expect_quiet(nullptr);
  }

  void expect_quiet(device::stream stream) { PENSTOCK_EXPECT_OK(house_.session().synchronize(stream)); }
};

TEST_P(stream_contract, values_are_read_when_the_stream_gets_there) {
  const auto content = make_file("data", 8 * mib);
  const auto from = open("data");
  auto& session = house_.session();
  const scoped_stream stream(session);
  gate held(session);
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  const auto before = memory.content();
  values now{.length = 4 * mib, .offset = 0};
  PENSTOCK_EXPECT_OK(held.close(session, stream));
  PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(stream, memory.data())));
  now.length = 3 * mib + 1;
  now.offset = 4097;
  now.memory_offset = 99;
  held.open();
  expect_quiet(stream);
  EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(3 * mib + 1));
  bytes expected = before;
  overlay(expected, 99, std::span(content).subspan(4097, 3 * mib + 1));
  memory.expect(expected);
}

TEST_P(stream_contract, reads_come_before_the_work_queued_after_them) {
  constexpr std::size_t length = 2 * mib + 5;
  const auto content = make_file("data", length);
  const auto from = open("data");
  auto& session = house_.session();
  const scoped_stream stream(session);
  const guarded_memory memory(house_, memory_place::device, length);
  const pinned_memory seen(session, length);
  for (const std::size_t part : {std::size_t{100}, 100 * kib, length}) {
    values now{.length = std::min(part, length - 5), .offset = 5};
    PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(stream, memory.data())));
    PENSTOCK_EXPECT_OK(session.copy(seen.data(), memory.data(), now.length, stream));
    expect_quiet(stream);
    EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(now.length));
    EXPECT_EQ(std::memcmp(seen.data(), &content[5], now.length), 0);
  }
}

TEST_P(stream_contract, writes_come_after_the_work_queued_before_them) {
  constexpr std::size_t length = 3 * mib + 5;
  auto content = make_file("data", 4 * mib);
  const auto to = open_for_writing("data", true);
  auto& session = house_.session();
  const scoped_stream stream(session);
  gate held(session);
  const guarded_memory memory(house_, memory_place::device, length);
  pinned_memory source(session, length);
  const auto written = pattern::make(length, 12);
  source.fill(written);
  values now{.length = length, .offset = 1000};
  PENSTOCK_EXPECT_OK(held.close(session, stream));
  PENSTOCK_EXPECT_OK(session.copy(memory.data(), source.data(), length, stream));
  PENSTOCK_EXPECT_OK(to.write_on_stream(now.on(stream, memory.data())));
  held.open();
  expect_quiet(stream);
  EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(length));
  overlay(content, 1000, written);
  expect_file(name(), content);
}

TEST_P(stream_contract, the_default_stream_is_a_stream) {
  const auto content = make_file("data", mib);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, mib);
  values now{.length = mib};
  PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(nullptr, memory.data())));
  expect_quiet(nullptr);
  EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(mib));
  memory.expect(content);
}

TEST_P(stream_contract, a_short_count_means_end_of_file) {
  const auto content = make_file("data", 5000);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, mib);
  values across{.length = mib, .offset = 1000};
  values behind{.length = mib, .offset = 6000};
  values nothing{.length = 0, .offset = 0};
  for (auto* each : {&across, &behind, &nothing}) PENSTOCK_EXPECT_OK(from.read_on_stream(each->on(nullptr, memory.data())));
  expect_quiet(nullptr);
  EXPECT_EQ(across.bytes_done, 4000);
  EXPECT_EQ(behind.bytes_done, 0);
  EXPECT_EQ(nothing.bytes_done, 0);
  memory.expect(std::span(content).subspan(1000));
}

TEST_P(stream_contract, a_failure_shows_as_minus_one_and_lets_the_stream_go_on) {
  make_file("data", mib);
  const auto both = open_for_writing();
  auto& session = house_.session();
  const scoped_stream stream(session);
  guarded_memory memory(house_, memory_place::device, mib);
  const pinned_memory after(session, 4096);
  values negative{.length = 100, .offset = -5};
  values past_memory{.length = 64 * mib, .offset = 0};
  values before_memory{.length = 100, .offset = 0, .memory_offset = -1};
  values good{.length = 100, .offset = 0};
  for (auto* each : {&negative, &past_memory, &before_memory, &good}) {
    PENSTOCK_EXPECT_OK(both.read_on_stream(each->on(stream, memory.data())));
  }
  PENSTOCK_EXPECT_OK(session.copy(after.data(), memory.data(), 100, stream));
  expect_quiet(stream);
  EXPECT_EQ(negative.bytes_done, -1);
  EXPECT_EQ(past_memory.bytes_done, -1);
  EXPECT_EQ(before_memory.bytes_done, -1);
  EXPECT_EQ(good.bytes_done, 100);
  EXPECT_EQ(pattern::first_difference({after.data(), 100}, 1, 0), std::nullopt);
}

TEST_P(stream_contract, what_cannot_be_queued_is_an_error_at_once) {
  make_file("data", mib);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 4096);
  guarded_memory on_host(house_, memory_place::pageable, 4096);
  values now{.length = 100};
  EXPECT_EQ(from.read_on_stream(now.on(nullptr, nullptr)).code(), errc::bad_memory);
  EXPECT_EQ(from.read_on_stream(now.on(nullptr, on_host.data())).code(), errc::unsupported);
  EXPECT_EQ(from.write_on_stream(now.on(nullptr, memory.data())).code(), errc::permission_denied);
  auto without_length = now.on(nullptr, memory.data());
  without_length.length = nullptr;
  EXPECT_EQ(from.read_on_stream(without_length).code(), errc::invalid_argument);
  auto without_offset = now.on(nullptr, memory.data());
  without_offset.offset = nullptr;
  EXPECT_EQ(from.read_on_stream(without_offset).code(), errc::invalid_argument);
  expect_quiet(nullptr);
  EXPECT_EQ(now.bytes_done, -77) << "nothing was queued";
  memory.expect_untouched();
  on_host.expect_untouched();
}

TEST_P(stream_contract, a_path_that_is_forced_is_refused_where_it_does_not_follow_streams) {
  make_file("data", 100);
  for (const auto forced :
       {path_kind::automatic, path_kind::posix, path_kind::staged, path_kind::mapped, path_kind::direct, path_kind::dma_buf}) {
    SCOPED_TRACE(std::string(to_string(forced)));
    engine_options options;
    options.path = forced;
    open_house house(options);
    const auto from = open_in(house.engine(), "data");
    const guarded_memory memory(house, memory_place::device, 100);
    values now{.length = 100};
    const auto queued = from.read_on_stream(now.on(nullptr, memory.data()));
    PENSTOCK_EXPECT_OK(house.session().synchronize(nullptr));
    const bool follows = forced == path_kind::automatic || forced == path_kind::staged;
    EXPECT_EQ(queued.code(), follows ? errc::ok : errc::unsupported) << told(queued);
    EXPECT_EQ(now.bytes_done, follows ? 100 : -77);
    EXPECT_EQ(queued.message().find(to_string(forced)) != std::string_view::npos, !follows) << told(queued);
  }
}

TEST_P(stream_contract, bytes_done_and_memory_offset_may_be_left_out) {
  const auto content = make_file("data", 4096);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 4096);
  const std::size_t length = 4096;
  const std::int64_t offset = 0;
  PENSTOCK_EXPECT_OK(from.read_on_stream({.memory = memory.data(), .length = &length, .offset = &offset}));
  expect_quiet(nullptr);
  memory.expect(content);
}

TEST_P(stream_contract, a_length_may_become_less_but_not_more) {
  const auto content = make_file("data", mib);
  const auto from = open("data");
  auto& session = house_.session();
  const scoped_stream stream(session);
  gate held(session);
  guarded_memory memory(house_, memory_place::device, mib);
  values less{.length = 5000, .offset = 7};
  values more{.length = 5000, .offset = 0};
  PENSTOCK_EXPECT_OK(held.close(session, stream));
  PENSTOCK_EXPECT_OK(from.read_on_stream(less.on(stream, memory.data())));
  PENSTOCK_EXPECT_OK(from.read_on_stream(more.on(stream, memory.data())));
  less.length = 3;
  more.length = 900 * kib;
  held.open();
  expect_quiet(stream);
  EXPECT_EQ(less.bytes_done, 3);
  EXPECT_EQ(more.bytes_done, -1);
  memory.expect(std::span(content).subspan(7, 3));
}

// Longer than what goes through at once, at every alignment of file and memory, and with the end of the file in each of the waves.
TEST_P(stream_contract, long_requests_go_through_in_waves) {
  constexpr std::size_t length = 21 * mib + 77;
  const auto content = make_file("data", length);
  const auto from = open("data");
  const auto to = open_for_writing("copy");
  auto& session = house_.session();
  const scoped_stream stream(session);
  for (const std::size_t start : {std::size_t{0}, std::size_t{1}, 4 * mib - 4096, 7 * mib + 13, 12 * mib, 17 * mib, length - 1}) {
    guarded_memory memory(house_, memory_place::device, length + 64);
    const auto before = memory.content();
    const std::size_t there = length - start;
    values in{.length = length, .offset = static_cast<std::int64_t>(start), .memory_offset = static_cast<std::int64_t>(start % 64)};
    values out{.length = there, .offset = static_cast<std::int64_t>(start), .memory_offset = in.memory_offset};
    PENSTOCK_EXPECT_OK(from.read_on_stream(in.on(stream, memory.data())));
    PENSTOCK_EXPECT_OK(to.write_on_stream(out.on(stream, memory.data())));
    expect_quiet(stream);
    EXPECT_EQ(in.bytes_done, static_cast<std::int64_t>(there));
    EXPECT_EQ(out.bytes_done, static_cast<std::int64_t>(there));
    bytes expected = before;
    overlay(expected, start % 64, std::span(content).subspan(start));
    memory.expect(expected);
  }
  expect_file(name("copy"), content);
}

TEST_P(stream_contract, the_count_may_be_in_memory_of_the_device) {
  make_file("data", mib);
  const auto both = open_for_writing("data", true);
  auto& session = house_.session();
  const scoped_stream stream(session);
  guarded_memory memory(house_, memory_place::device, mib);
  auto counts = house_.engine().allocate(house_.device(), 4 * sizeof(std::int64_t));
  ASSERT_TRUE(counts.ok()) << told(counts.error());
  auto* const on_device = static_cast<std::int64_t*>(counts->data());
  values all{.length = mib};
  values short_of{.length = mib, .offset = mib - 100};
  values negative{.length = 10, .offset = -1};
  values back{.length = 5000, .offset = 3};
  std::size_t index = 0;
  for (auto* each : {&all, &short_of, &negative, &back}) {
    auto request = each->on(stream, memory.data());
    request.bytes_done = on_device + index++;
    PENSTOCK_EXPECT_OK(each == &back ? both.write_on_stream(request) : both.read_on_stream(request));
  }
  pinned_memory seen(session, 4096);
  PENSTOCK_EXPECT_OK(session.copy(seen.data(), on_device, 4 * sizeof(std::int64_t), stream));
  expect_quiet(stream);
  std::array<std::int64_t, 4> found{};
  std::memcpy(found.data(), seen.data(), sizeof(found));
  EXPECT_EQ(found, (std::array<std::int64_t, 4>{mib, 100, -1, 5000}));
}

// Requests whose stream is not there yet hold nothing that others need.
TEST_P(stream_contract, requests_that_wait_for_their_stream_are_in_nobodys_way) {
  constexpr std::size_t part = 5 * mib;
  constexpr std::size_t count = 40;
  constexpr std::size_t held_streams = 3;  // a GPU has eight queues, which streams share
  const auto content = make_file("data", part);
  const auto from = open("data");
  auto& session = house_.session();
  std::deque<scoped_stream> streams;
  std::deque<guarded_memory> memories;
  std::deque<values> all;
  gate held(session);
  for (std::size_t i = 0; i < count; ++i) {
    if (i < held_streams) {
      streams.emplace_back(session);
      memories.emplace_back(house_, memory_place::device, part);
      PENSTOCK_EXPECT_OK(held.close(session, streams.back()));
    }
    auto& now = all.emplace_back(values{.length = part});
    PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(streams[i % held_streams], memories[i % held_streams].data())));
  }
  guarded_memory other(house_, memory_place::device, part);
  EXPECT_EQ(from.read(other.data(), part, 0).bytes_done, part);
  values free{.length = part};
  const scoped_stream stream(session);
  PENSTOCK_EXPECT_OK(from.read_on_stream(free.on(stream, other.data())));
  expect_quiet(stream);
  EXPECT_EQ(free.bytes_done, static_cast<std::int64_t>(part));
  EXPECT_EQ(all.front().bytes_done, -77) << "held";
  held.open();
  for (const auto& each : streams) expect_quiet(each);
  for (const auto& each : all) EXPECT_EQ(each.bytes_done, static_cast<std::int64_t>(part));
  for (auto& each : memories) each.expect(content);
}

TEST_P(stream_contract, many_requests_on_many_streams_keep_their_order) {
  constexpr std::size_t streams = 4;
  constexpr std::size_t rounds = 40;
  constexpr std::size_t part = 70000;
  const auto content = make_file("data", streams * rounds * part);
  const auto from = open("data");
  const auto to = open_for_writing("copy");
  auto& session = house_.session();
  std::vector<std::unique_ptr<scoped_stream>> lines;
  std::vector<guarded_memory> memories;
  std::deque<values> all;
  for (std::size_t s = 0; s < streams; ++s) {
    lines.push_back(std::make_unique<scoped_stream>(session));
    memories.emplace_back(house_, memory_place::device, part);
  }
  std::vector<std::thread> crew;
  std::mutex lock;
  for (std::size_t s = 0; s < streams; ++s) {
    crew.emplace_back([&, s] {
      // The same memory again and again: only the order keeps the bytes apart.
      for (std::size_t i = 0; i < rounds; ++i) {
        values* now = nullptr;
        {
          const std::lock_guard guard(lock);
          now = &all.emplace_back();
        }
        now->length = part;
        now->offset = static_cast<std::int64_t>((s * rounds + i) * part);
        PENSTOCK_EXPECT_OK(from.read_on_stream(now->on(*lines[s], memories[s].data())));
        PENSTOCK_EXPECT_OK(to.write_on_stream(now->on(*lines[s], memories[s].data())));
      }
    });
  }
  for (auto& each : crew) each.join();
  for (const auto& line : lines) expect_quiet(*line);
  for (const auto& each : all) EXPECT_EQ(each.bytes_done, static_cast<std::int64_t>(part));
  expect_file(name("copy"), content);
}

TEST_P(stream_contract, what_is_fixed_is_read_ahead_and_written_to_memory_in_order) {
  constexpr std::size_t length = 300 * kib;
  const auto content = make_file("data", 10 * length);
  const auto from = open("data");
  auto& session = house_.session();
  for (const bool early : {false, true}) {
    const scoped_stream stream(session);
    gate held(session);
    guarded_memory memory(house_, memory_place::device, 4 * length);
    const auto before = memory.content();
    std::int64_t count = -77;
    PENSTOCK_EXPECT_OK(held.close(session, stream));
    {
      values gone{.length = length, .offset = 5 * length + 1, .memory_offset = length};
      auto request = gone.on(stream, memory.data());
      request.bytes_done = &count;
      request.constant_arguments = !early;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
      request.fixed = early;  // the old name
#pragma GCC diagnostic pop
      request.told_early = early;
      PENSTOCK_EXPECT_OK(from.read_on_stream(request));
      gone = {.length = 1, .offset = 0, .memory_offset = 0};  // must not be seen
    }
    while (early && std::atomic_ref(count).load() == -77) std::this_thread::yield();
    memory.expect(before);
    held.open();
    expect_quiet(stream);
    EXPECT_EQ(count, static_cast<std::int64_t>(length));
    bytes expected = before;
    overlay(expected, length, std::span(content).subspan(5 * length + 1, length));
    memory.expect(expected);
  }
}

// Random requests on several streams, some of them fixed, over ranges that overlap, in an order that events between streams make one: what
// every read found and what the file holds at the end is what they would have done one after the other.
TEST_P(stream_contract, reads_and_writes_keep_the_order_that_events_make) {
  constexpr std::size_t extent = 3 * mib;
  constexpr std::size_t streams = 3;
  constexpr std::size_t slots = 40;
  constexpr std::size_t most = 1200 * kib;
  auto file = make_file("data", extent);
  const auto both = open_for_writing("data", true);
  auto& session = house_.session();
  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>(0, end - 1)(random); };
  std::vector<std::unique_ptr<scoped_stream>> lines;
  for (std::size_t i = 0; i < streams; ++i) lines.push_back(std::make_unique<scoped_stream>(session));
  guarded_memory memory(house_, memory_place::device, slots * most);
  auto expected = memory.content();
  std::deque<values> all;
  std::vector<device::event> events;
  std::size_t last = 0;
  for (std::size_t i = 0; i < slots; ++i) {
    const std::size_t line = below(streams);
    if (line != last) {
      const auto made = session.make_event();
      ASSERT_TRUE(made.ok());
      events.push_back(*made);
      PENSTOCK_EXPECT_OK(session.record(*made, *lines[last]));
      PENSTOCK_EXPECT_OK(session.wait_event(*lines[line], *made));
      last = line;
    }
    const std::size_t length = 1 + below(below(2) == 0 ? 5000 : most);
    const std::size_t offset = below(extent - length);
    auto& now = all.emplace_back(values{.length = length, .offset = static_cast<std::int64_t>(offset)});
    now.memory_offset = static_cast<std::int64_t>(i * most);
    const bool is_write = below(2) == 0 && i > 0;
    if (is_write) now.memory_offset = static_cast<std::int64_t>(below(i) * most);
    auto request = now.on(*lines[line], memory.data());
    request.constant_arguments = below(2) == 0;
    request.told_early = below(2) == 0;
    const auto at = static_cast<std::size_t>(now.memory_offset);
    if (is_write) {
      PENSTOCK_EXPECT_OK(both.write_on_stream(request));
      overlay(file, offset, std::span(expected).subspan(at, length));
    } else {
      PENSTOCK_EXPECT_OK(both.read_on_stream(request));
      overlay(expected, at, std::span(file).subspan(offset, length));
    }
  }
  for (const auto& line : lines) expect_quiet(*line);
  for (const auto& each : all) EXPECT_EQ(each.bytes_done, static_cast<std::int64_t>(each.length));
  memory.expect(expected);
  expect_file(name("data"), file);
  for (auto* each : events) PENSTOCK_EXPECT_OK(session.destroy_event(each));
}

// Reads ahead of streams that wait for another one must leave it what it needs to go on.
TEST_P(stream_contract, streams_that_wait_for_each_other_go_on_with_little_pinned_memory) {
  constexpr std::size_t each = 3 * mib;
  constexpr std::size_t lines_count = 3;
  constexpr std::size_t requests = 8;  // of each stream
  const auto content = make_file("data", lines_count * requests * each);
  engine_options little;
  little.pinned_budget_bytes = 40 * mib;
  open_house house(little, core::real_seams({}));
  const auto from = open_in(house.engine(), "data");
  auto& session = house.session();
  gate held(session);
  guarded_memory memory(house, memory_place::device, content.size());
  values first{.length = 1};
  PENSTOCK_EXPECT_OK(from.read_on_stream(first.on(nullptr, memory.data())));  // loads this engine's kernel, as long as no stream is held
  PENSTOCK_EXPECT_OK(session.synchronize(nullptr));
  std::vector<std::unique_ptr<scoped_stream>> lines;
  for (std::size_t i = 0; i < lines_count; ++i) lines.push_back(std::make_unique<scoped_stream>(session));
  PENSTOCK_EXPECT_OK(held.close(session, *lines.front()));
  std::deque<values> all;
  std::vector<device::event> events;
  for (std::size_t line = 0; line < lines_count; ++line) {
    const auto made = session.make_event();
    ASSERT_TRUE(made.ok());
    events.push_back(*made);
    if (line > 0) PENSTOCK_EXPECT_OK(session.wait_event(*lines[line], events[line - 1]));
    for (std::size_t i = 0; i < requests; ++i) {
      const std::size_t at = (line * requests + i) * each;
      auto& now = all.emplace_back(values{.length = each, .offset = static_cast<std::int64_t>(at)});
      auto request = now.on(*lines[line], memory.data() + at);
      request.constant_arguments = line > 0;  // the first begins when it is reached, and needs slabs then
      request.told_early = i % 2 == 0;
      PENSTOCK_EXPECT_OK(from.read_on_stream(request));
    }
    PENSTOCK_EXPECT_OK(session.record(events[line], *lines[line]));
  }
  held.open();
  for (const auto& line : lines) PENSTOCK_EXPECT_OK(session.synchronize(*line));
  for (const auto& one : all) EXPECT_EQ(one.bytes_done, static_cast<std::int64_t>(each));
  memory.expect(content);
  for (auto* event : events) PENSTOCK_EXPECT_OK(session.destroy_event(event));
}

TEST_P(stream_contract, hundreds_that_are_fixed_may_be_queued_before_the_stream_moves) {
  constexpr std::size_t each = 64 * kib;
  constexpr std::size_t parts = 128;
  constexpr std::size_t requests = 250;  // more than three times as many entries the driver would not take
  const auto content = make_file("data", parts * each);
  const auto from = open("data");
  auto& session = house_.session();
  for (const bool early : {false, true}) {
    const scoped_stream stream(session);
    gate held(session);
    guarded_memory memory(house_, memory_place::device, parts * each);
    std::vector<std::int64_t> counts(requests, -77);
    PENSTOCK_EXPECT_OK(held.close(session, stream));
    for (std::size_t i = 0; i < requests; ++i) {
      const std::size_t length = each;
      const auto offset = static_cast<std::int64_t>(i % parts * each);
      PENSTOCK_EXPECT_OK(read_fixed(from, stream, memory.data() + offset, length, offset, &counts[i], early));
    }
    held.open();
    expect_quiet(stream);
    EXPECT_EQ(std::ranges::count(counts, static_cast<std::int64_t>(each)), static_cast<std::ptrdiff_t>(requests));
    memory.expect(content);
  }
}

// What follows a read on its stream takes its slab, of whatever length both are; so do reads of the same thread's stream, and of a stream
// that many threads queue onto.
TEST_P(stream_contract, slabs_go_from_read_to_read_in_the_order_of_the_stream) {
  constexpr std::size_t extent = 24 * mib;
  const std::array lengths{4 * kib, 64 * kib, 65 * kib, 900 * kib, 3 * mib, 17 * mib + 5};
  const auto content = make_file("data", extent);
  const auto from = open("data");
  auto& session = house_.session();
  constexpr std::size_t streams = 2;
  std::vector<std::unique_ptr<scoped_stream>> lines;
  for (std::size_t i = 0; i < streams; ++i) lines.push_back(std::make_unique<scoped_stream>(session));
  std::vector<std::thread> crew;
  for (unsigned t = 0; t < 4; ++t) {
    crew.emplace_back([&, t] {
      std::mt19937 random(t);
      guarded_memory memory(house_, memory_place::device, extent);
      auto expected = memory.content();
      std::vector<std::int64_t> counts(60, -77);
      std::vector<std::int64_t> asked;
      for (auto& count : counts) {
        const std::size_t length = lengths[random() % lengths.size()];
        const auto offset = static_cast<std::int64_t>(random() % (extent - length));
        PENSTOCK_EXPECT_OK(read_fixed(from, *lines[t % streams], memory.data() + offset, length, offset, &count, random() % 4 != 0));
        asked.push_back(static_cast<std::int64_t>(length));
        overlay(expected, static_cast<std::size_t>(offset), std::span(content).subspan(static_cast<std::size_t>(offset), length));
      }
      expect_quiet(*lines[t % streams]);
      EXPECT_EQ(counts, asked);
      memory.expect(expected);
    });
  }
  for (auto& each : crew) each.join();
}

// A stream that is held keeps what its reads were promised; others, that it waits for, go on.
TEST_P(stream_contract, reads_that_were_promised_slabs_are_in_nobodys_way) {
  constexpr std::size_t each = 64 * kib;
  constexpr std::size_t parts = 200;
  const auto content = make_file("data", parts * each);
  const auto from = open("data");
  auto& session = house_.session();
  const scoped_stream waits(session);
  const scoped_stream goes_on(session);
  gate held(session);
  guarded_memory memory(house_, memory_place::device, parts * each);
  guarded_memory other(house_, memory_place::device, parts * each);
  std::vector<std::int64_t> counts(2 * parts, -77);
  const auto read_all = [&](device::stream stream, std::byte* into, std::int64_t* count) {
    for (std::size_t i = 0; i < parts; ++i) {
      const std::size_t length = each;
      const auto offset = static_cast<std::int64_t>(i * each);
      PENSTOCK_EXPECT_OK(read_fixed(from, stream, into + offset, length, offset, count + i));
    }
  };
  PENSTOCK_EXPECT_OK(held.close(session, waits));
  read_all(waits, memory.data(), counts.data());
  read_all(goes_on, other.data(), counts.data() + parts);
  expect_quiet(goes_on);
  other.expect(content);
  memory.expect_untouched();
  held.open();
  expect_quiet(waits);
  memory.expect(content);
  EXPECT_EQ(std::ranges::count(counts, static_cast<std::int64_t>(each)), static_cast<std::ptrdiff_t>(2 * parts));
}

// The last of so many reads is not brought before the file is cut off: earlier ones have all the slabs.
TEST_P(stream_contract, what_a_fixed_read_does_not_find_any_more_is_left_or_comes_as_zeros) {
  if (GetParam() != file_home::disk) GTEST_SKIP() << "the size of the source cannot be changed";
  constexpr std::size_t length = 9 * mib;
  constexpr std::size_t reads = 7;
  for (const std::size_t left : {std::size_t{0}, 64 * kib + 5, 5 * mib + 77}) {
    const auto content = make_file("data", length);
    const auto both = open_for_writing("data", true);
    auto& session = house_.session();
    const scoped_stream stream(session);
    gate held(session);
    std::deque<guarded_memory> memories;
    for (std::size_t i = 0; i < reads; ++i) memories.emplace_back(house_, memory_place::device, length);
    const auto untouched = memories.back().content();
    std::vector<std::int64_t> counts(reads, -77);
    PENSTOCK_EXPECT_OK(held.close(session, stream));
    for (std::size_t i = 0; i < reads; ++i) {
      const std::size_t asked = length;
      const std::int64_t offset = 0;
      PENSTOCK_EXPECT_OK(read_fixed(both, stream, memories[i].data(), asked, offset, &counts[i]));
    }
    PENSTOCK_EXPECT_OK(both.truncate(left));
    held.open();
    expect_quiet(stream);
    EXPECT_EQ(counts.back(), static_cast<std::int64_t>(left));
    const auto found = memories.back().content();
    EXPECT_TRUE(std::ranges::equal(std::span(found).first(left), std::span(content).first(left)));
    for (std::size_t i = left; i < length; ++i) ASSERT_TRUE(found[i] == std::byte{0} || found[i] == untouched[i]) << i;
  }
}

TEST_P(stream_contract, closing_the_file_waits_for_the_stream) {
  const auto content = make_file("data", mib);
  auto from = open("data");
  guarded_memory memory(house_, memory_place::device, mib);
  values now{.length = mib};
  PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(nullptr, memory.data())));
  EXPECT_TRUE(from.close().ok());
  expect_quiet(nullptr);
  EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(mib));
  memory.expect(content);
}

TEST_P(stream_contract, a_write_may_wait_for_the_default_stream) {
  constexpr std::size_t length = 50 * kib;
  auto doors = core::real_seams({});
  auto& driver = house_.on_gpu() ? doors.cuda : doors.host;
  const auto watched = make_faulty_driver(driver);
  driver = watched;
  open_house house({}, doors);
  const auto to = open_in(house.engine(), "data", {.read = true, .write = true, .create = true});
  auto& session = house.session();
  const guarded_memory memory(house, memory_place::device, length);
  pinned_memory source(session, length);
  gate held(session);
  const io_options after{.cufile = {.after_default_stream = true}};
  const std::vector<std::function<void()>> ways{
      [&] { EXPECT_EQ(to.write(memory.data(), length, 0, after).bytes_done, length); },
      [&] { EXPECT_EQ(to.write_async(memory.data(), length, 0, after).wait().bytes_done, length); },
      [&] {
        const io_request request{&to, memory.data(), length, 0, true};
        EXPECT_EQ(house.engine().submit(std::span(&request, 1), after).wait().at(0).bytes_done, length);
      }};
  ways.front()();  // what the first request makes may wait for the device
  for (std::uint64_t i = 0; i < ways.size(); ++i) {
    const auto made = pattern::make(length, 20 + i);
    source.fill(made);
    held.shut();
    PENSTOCK_EXPECT_OK(held.close(session, nullptr));
    PENSTOCK_EXPECT_OK(session.copy(memory.data(), source.data(), length, nullptr));
    // The stream goes on once the request asks for its end. One that did not would write what the memory held before.
    watched->set_hook([&held](std::string_view call, std::uint64_t) -> std::optional<status> {
      if (call == "synchronize") held.open();
      return std::nullopt;
    });
    ways[i]();
    watched->set_hook(nullptr);
    held.open();
    expect_file(to.path(), made);
  }
}

// The engine may end as soon as its last request has; streams and their calls belong to the device.
TEST_P(stream_contract, an_engine_may_be_left_behind_by_its_streams) {
  const auto content = make_file("data", 300 * kib);
  for (int round = 0; round < 30; ++round) {
    open_house house;
    auto& session = house.session();
    const scoped_stream stream(session);
    auto memory = house.engine().allocate(house.device(), 300 * kib);
    ASSERT_TRUE(memory.ok()) << told(memory.error());
    auto from = open_in(house.engine(), "data");
    values now{.length = 300 * kib};
    PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(stream, memory->data())));
    house.end();
    from = file();
    *memory = device_buffer();
    PENSTOCK_EXPECT_OK(session.synchronize(stream));
    EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(300 * kib));
  }
}

TEST_P(stream_contract, the_first_requests_of_a_new_engine_may_come_from_many_threads) {
  const auto content = make_file("data", 100 * kib);
  for (int round = 0; round < 15; ++round) {
    open_house house;
    auto from = open_in(house.engine(), "data");
    std::vector<std::thread> crew;
    for (int t = 0; t < 6; ++t) {
      crew.emplace_back([&, t] {
        guarded_memory memory(house, memory_place::device, 100 * kib);
        values now{.length = 100 * kib};
        if (t % 2 == 0) {
          PENSTOCK_EXPECT_OK(from.read_on_stream(now.on(nullptr, memory.data())));
          PENSTOCK_EXPECT_OK(house.session().synchronize(nullptr));
          EXPECT_EQ(now.bytes_done, static_cast<std::int64_t>(100 * kib));
        } else {
          const auto outcome = from.read(memory.data(), 100 * kib, 0);
          EXPECT_TRUE(outcome.ok()) << told(outcome.error);
        }
        memory.expect(content);
      });
    }
    for (auto& each : crew) each.join();
  }
}

INSTANTIATE_TEST_SUITE_P(on, stream_contract, every_home, name_of_home);

// A host device some of whose calls fail.
class stream_fault_contract : public ::testing::Test {
 protected:
  std::shared_ptr<device::driver> real_ = device::make_host_driver();
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(real_);
  open_house house_{engine_options{}, core::seams{sys::make_kernel(), nullptr, driver_}};
  temp_dir directory_ = temp_dir::on_build_disk();

  // Reads on a stream, and copies what was read with the work queued behind.
  void expect_order_is_kept() {
    constexpr std::size_t length = 300 * kib;
    const auto content = pattern::make(length, 3);
    store_file(directory_.file("data"), content);
    auto from = house_.engine().open(directory_.file("data"));
    ASSERT_TRUE(from.ok()) << told(from.error());
    auto& session = house_.session();
    const scoped_stream stream(session);
    pinned_memory seen(session, length);
    for (int round = 0; round < 40; ++round) {
      const guarded_memory memory(house_, memory_place::device, length);
      seen.fill(std::byte{0});
      const std::size_t asked = length;
      const std::int64_t offset = 0;
      std::int64_t bytes_done = -77;
      PENSTOCK_EXPECT_OK(from->read_on_stream(
          {.stream = stream, .memory = memory.data(), .length = &asked, .offset = &offset, .bytes_done = &bytes_done}));
      PENSTOCK_EXPECT_OK(session.copy(seen.data(), memory.data(), length, stream));
      PENSTOCK_EXPECT_OK(session.synchronize(stream));
      EXPECT_EQ(bytes_done, static_cast<std::int64_t>(length));
      EXPECT_TRUE(seen.holds(content)) << "round " << round;
    }
    EXPECT_GT(driver_->injected(), 0U);
  }
};

TEST_F(stream_fault_contract, the_host_waits_where_streams_cannot_wait_for_memory) {
  driver_->fail("wait_value", 1, status(errc::unsupported, "no stream memory operations"), faulty_driver::always);
  expect_order_is_kept();
}

TEST_F(stream_fault_contract, the_host_waits_where_there_is_no_kernel) {
  driver_->fail("scatter", 1, status(errc::unsupported, "no kernel"), faulty_driver::always);
  expect_order_is_kept();
}

// The driver may lock itself up until the stream goes on (in cuMemFree, or to load a kernel): whoever called it then would wait for ever.
TEST_F(stream_fault_contract, nothing_is_asked_of_the_driver_once_a_request_is_queued) {
  constexpr std::size_t length = 9 * mib + 5;
  const auto content = pattern::make(length, 3);
  store_file(directory_.file("data"), content);
  auto& session = house_.session();
  for (const bool is_write : {false, true}) {
    auto both = house_.engine().open(directory_.file("data"), {.write = true});
    ASSERT_TRUE(both.ok()) << told(both.error());
    const scoped_stream stream(session);
    const guarded_memory memory(house_, memory_place::device, length);
    pinned_memory gate(session, 4096);
    gate.fill(std::byte{0});
    PENSTOCK_EXPECT_OK(session.wait_value(stream, reinterpret_cast<std::uint32_t*>(gate.data()), 1));
    const std::size_t asked = length;
    const std::int64_t offset = 0;
    std::int64_t bytes_done = -77;
    const stream_request request{.stream = stream, .memory = memory.data(), .length = &asked, .offset = &offset, .bytes_done = &bytes_done};
    PENSTOCK_EXPECT_OK(is_write ? both->write_on_stream(request) : both->read_on_stream(request));
    const auto before = driver_->calls();
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(gate.data())).store(1, std::memory_order_release);
    EXPECT_TRUE(both->close().ok()) << "which waits for what is under way";
    EXPECT_EQ(driver_->calls(), before);
    EXPECT_EQ(bytes_done, static_cast<std::int64_t>(length));
    PENSTOCK_EXPECT_OK(session.synchronize(stream));
  }
}

// Streams that are busy at the same time share the slabs: reads that find none do not keep all others from being copied plainly.
TEST_F(stream_fault_contract, reads_of_several_busy_streams_are_copied_plainly) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t bursts = 12;
  constexpr std::size_t in_burst = 64;
  constexpr std::size_t length = 64 * kib;
  store_file(directory_.file("data"), pattern::make(in_burst * length, 3));
  auto from = house_.engine().open(directory_.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  auto& session = house_.session();
  for (const std::size_t streams : {std::size_t{2}, threads}) {
    std::vector<std::unique_ptr<scoped_stream>> lines;
    for (std::size_t i = 0; i < streams; ++i) lines.push_back(std::make_unique<scoped_stream>(session));
    const auto by_kernel = driver_->calls("scatter");
    std::vector<std::thread> crew;
    for (std::size_t t = 0; t < threads; ++t) {
      crew.emplace_back([&, t] {
        const guarded_memory memory(house_, memory_place::device, in_burst * length);
        for (std::size_t burst = 0; burst < bursts; ++burst) {
          std::vector<std::int64_t> counts(in_burst, -77);
          for (std::size_t i = 0; i < in_burst; ++i) {
            const auto at = static_cast<std::int64_t>(i * length);
            PENSTOCK_EXPECT_OK(read_fixed(*from, *lines[t % streams], memory.data() + at, length, at, &counts[i]));
          }
          PENSTOCK_EXPECT_OK(session.synchronize(*lines[t % streams]));
          EXPECT_EQ(std::ranges::count(counts, static_cast<std::int64_t>(length)), static_cast<std::ptrdiff_t>(in_burst));
        }
      });
    }
    for (auto& each : crew) each.join();
    EXPECT_LT(driver_->calls("scatter") - by_kernel, threads * bursts * in_burst / 4);
  }
}

// In the middle of being queued, a request goes on as far as it is on the stream: the driver may not let the rest in until that is quiet.
TEST_F(stream_fault_contract, a_driver_that_waits_for_the_stream_while_a_request_is_queued_gets_it_quiet) {
  constexpr std::size_t length = 30 * mib + 5;
  const auto content = pattern::make(length, 3);
  store_file(directory_.file("data"), content);
  auto both = house_.engine().open(directory_.file("data"), {.write = true});
  ASSERT_TRUE(both.ok()) << told(both.error());
  auto& session = house_.session();
  auto& real = **real_->open(0, nullptr);
  const scoped_stream stream(session);
  guarded_memory memory(house_, memory_place::device, length);
  driver_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<status> {
    if (call == "scatter" || call == "write_value" || call == "wait_value") (void)real.synchronize(stream);
    return std::nullopt;
  });
  const std::size_t asked = length;
  const std::int64_t offset = 0;
  for (const bool is_write : {false, true}) {
    std::int64_t bytes_done = -77;
    const stream_request request{.stream = stream, .memory = memory.data(), .length = &asked, .offset = &offset, .bytes_done = &bytes_done};
    PENSTOCK_EXPECT_OK(is_write ? both->write_on_stream(request) : both->read_on_stream(request));
    PENSTOCK_EXPECT_OK(session.synchronize(stream));
    EXPECT_EQ(bytes_done, static_cast<std::int64_t>(length));
    memory.expect(content);
  }
  driver_->clear_faults();
  expect_file(directory_.file("data"), content);
}

// Wherever the driver refuses while a request is being queued, the stream gets past what is on it already, and the host waits instead.
TEST_F(stream_fault_contract, what_is_queued_in_part_is_taken_back) {
  constexpr std::size_t length = 9 * mib;
  const auto content = pattern::make(length, 3);
  store_file(directory_.file("data"), content);
  auto from = house_.engine().open(directory_.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  auto& session = house_.session();
  for (const char* call : {"write_value", "wait_value", "scatter"}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      for (const bool for_good : {false, true}) {
        const scoped_stream stream(session);
        guarded_memory memory(house_, memory_place::device, length);
        const std::size_t asked = length;
        const std::int64_t offset = 0;
        std::int64_t bytes_done = -77;
        driver_->fail(call, nth, status(errc::device, "injected"));
        if (for_good) driver_->fail("synchronize", 1, status(errc::device, "injected"));
        const auto queued = from->read_on_stream(
            {.stream = stream, .memory = memory.data(), .length = &asked, .offset = &offset, .bytes_done = &bytes_done});
        driver_->clear_faults();
        PENSTOCK_EXPECT_OK(session.synchronize(stream));
        EXPECT_EQ(queued.code(), for_good ? errc::device : errc::ok) << call << " " << nth;
        EXPECT_EQ(bytes_done, for_good ? -77 : static_cast<std::int64_t>(length));
        if (!for_good) memory.expect(content);
      }
    }
  }
  EXPECT_TRUE(from->close().ok()) << "which waits for what is under way";
}

TEST_F(stream_fault_contract, a_stream_that_refuses_leaves_nothing_behind) {
  store_file(directory_.file("data"), pattern::make(1000, 1));
  auto from = house_.engine().open(directory_.file("data"));
  ASSERT_TRUE(from.ok()) << told(from.error());
  const guarded_memory memory(house_, memory_place::device, 1000);
  const std::size_t length = 1000;
  const std::int64_t offset = 0;
  driver_->fail("write_value", 1, status(errc::device, "injected"));
  driver_->fail("synchronize", 1, status(errc::device, "injected"));
  EXPECT_EQ(from->read_on_stream({.memory = memory.data(), .length = &length, .offset = &offset}).code(), errc::device);
  EXPECT_TRUE(from->close().ok()) << "which waits for what is under way";
}

// Holds writes back while it is shut.
class held_writes final : public forwarding_kernel {
 public:
  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    wait();
    return inner().pwrite(fd, source, length, offset);
  }
  result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    wait();
    return inner().pwrite_uncached(fd, source, length, offset);
  }
  void set_open(bool open) {
    const std::lock_guard guard(lock_);
    is_open_ = open;
    changed_.notify_all();
  }

 private:
  void wait() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [this] { return is_open_; });
  }

  std::mutex lock_;  // guards the members below
  std::condition_variable changed_;
  bool is_open_ = true;
};

class early_pass_contract : public ::testing::Test {
 protected:
  early_pass_contract() : early_pass_contract(core::real_seams({})) {}

  static status write(const file& to, device::stream on, std::byte* memory, std::size_t length, std::int64_t offset, io_callback ended) {
    stream_request request{.stream = on, .memory = memory, .length = &length, .offset = &offset};
    request.constant_arguments = true;
    request.passes_early = true;
    request.ended = std::move(ended);
    return to.write_on_stream(request);
  }

  std::shared_ptr<held_writes> kernel_ = std::make_shared<held_writes>();
  open_house house_;
  device::session& session_ = house_.session();
  temp_dir directory_;

 private:
  explicit early_pass_contract(core::seams doors) : house_({}, (doors.kernel = kernel_, std::move(doors))) {}
};

TEST_F(early_pass_contract, a_write_lets_its_stream_pass_and_later_reads_wait_for_it) {
  constexpr std::size_t length = 100 * kib;
  store_file(directory_.file("data"), bytes(4 * length));
  const auto both = house_.engine().open(directory_.file("data"), {.read = true, .write = true});
  ASSERT_TRUE(both.ok()) << told(both.error());
  const scoped_stream stream(session_);
  const scoped_stream other(session_);
  const guarded_memory sources(house_, memory_place::device, 4 * length);
  const guarded_memory targets(house_, memory_place::device, 4 * length);
  const guarded_memory beside(house_, memory_place::device, 1);
  pinned_memory content(session_, 4 * length);
  const pinned_memory zeros(session_, 4 * length);
  pinned_memory seen(session_, 4 * length);
  const std::size_t one = 1;
  const std::int64_t end = 4 * length - 1;
  PENSTOCK_EXPECT_OK(both->read_on_stream({.memory = beside.data(), .length = &one, .offset = &end}));
  PENSTOCK_EXPECT_OK(session_.synchronize(nullptr));
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const auto made = pattern::make(4 * length, seed);
    content.fill(made);
    kernel_->set_open(false);
    std::atomic<int> ended{0};
    const auto count = [&](const io_result& outcome) { ended += outcome.bytes_done == length ? 1 : 100; };
    PENSTOCK_EXPECT_OK(session_.copy(sources.data(), content.data(), 4 * length, stream));
    for (std::size_t i = 0; i < 4; ++i) {
      const auto at = static_cast<std::int64_t>(i * length);
      PENSTOCK_EXPECT_OK(write(*both, stream, sources.data() + at, length, at, count));
    }
    PENSTOCK_EXPECT_OK(session_.copy(sources.data(), zeros.data(), 4 * length, stream));
    PENSTOCK_EXPECT_OK(session_.synchronize(stream));  // although no write completes
    EXPECT_EQ(ended, 0);
    std::array<std::int64_t, 4> offsets{};
    for (std::size_t i = 0; i < 4; ++i) {
      offsets[i] = static_cast<std::int64_t>(i * length);
      PENSTOCK_EXPECT_OK(both->read_on_stream({.stream = i == 3 ? other : stream,
                                               .memory = targets.data() + i * length,
                                               .length = &length,
                                               .offset = &offsets[i],
                                               .constant_arguments = i % 2 == 0,
                                               .told_early = i == 2}));
    }
    for (int i = 0; i < 20; ++i) {  // the reads above have time to run
      PENSTOCK_EXPECT_OK(both->read_on_stream({.memory = beside.data(), .length = &one, .offset = &end, .constant_arguments = false}));
      std::this_thread::yield();
    }
    kernel_->set_open(true);
    for (const device::stream each : {device::stream(stream), device::stream(other)}) PENSTOCK_EXPECT_OK(session_.synchronize(each));
    PENSTOCK_EXPECT_OK(session_.copy(seen.data(), targets.data(), 4 * length, stream));
    PENSTOCK_EXPECT_OK(session_.synchronize(stream));
    PENSTOCK_EXPECT_OK(session_.synchronize(nullptr));
    EXPECT_TRUE(seen.holds(made)) << seed;
    EXPECT_EQ(ended, 4);
  }
}

TEST_F(early_pass_contract, many_writes_in_turn_are_all_complete_when_the_file_is_closed) {
  constexpr std::size_t length = 300 * kib;
  constexpr std::size_t count = 60;
  store_file(directory_.file("data"), bytes(count * length));
  auto to = house_.engine().open(directory_.file("data"), {.read = true, .write = true});
  ASSERT_TRUE(to.ok()) << told(to.error());
  guarded_memory source(house_, memory_place::device, length * count);
  const auto made = pattern::make(length * count, 5);
  source.fill(made);
  std::atomic<std::size_t> bytes_done{0};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * length;
    PENSTOCK_EXPECT_OK(write(*to, nullptr, source.data() + at, length, static_cast<std::int64_t>(at),
                             [&](const io_result& outcome) { bytes_done += outcome.bytes_done; }));
  }
  EXPECT_TRUE(to->close().ok());
  EXPECT_EQ(bytes_done, made.size());
  expect_file(directory_.file("data"), made);
}

}  // namespace
}  // namespace penstock::testing
