// The contract of every path, tested on each path by name with every kind of memory that it serves, and with every kind of source. A path
// that cannot run on this machine is skipped with a reason.
#include <unistd.h>

#include <array>
#include <atomic>
#include <limits>
#include <random>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "contract/heap_path.hpp"
#include "support/lending_machine.hpp"

namespace penstock::testing {
namespace {

constexpr std::size_t large_file = 9 * mib + 5;

// A path by its name, built in or not, memory, and which way it goes to what is not in the page cache.
struct contract_case {
  std::string_view path;
  memory_place place;
  file_home home = file_home::disk;
  cache_use cache = cache_use::bypass;
};

// For those who bring a path: the line that adds it.
const std::vector<const path::declaration*> further{&declared_heap};

std::string name_of(const ::testing::TestParamInfo<contract_case>& info) {
  auto name = std::string(info.param.path) + "_" + to_string(info.param.place);
  if (info.param.cache != cache_use::bypass) name += "_" + std::string(to_string(info.param.cache));
  return info.param.home == file_home::disk ? name : name + "_" + to_string(info.param.home);
}

class path_contract : public contract_fixture, public ::testing::WithParamInterface<contract_case> {
 protected:
  // Further paths are there only where one of them is asked for: else they would be chosen.
  path_contract() : contract_fixture(engine_options{}, GetParam().home, doors()) {}

  void SetUp() override {
    if (asked() == path_kind::mapped && !house_.on_gpu()) skip_without_reads_of_processes();
    if (asked() != path_kind::direct && asked() != path_kind::dma_buf) return;
    make_file("probe", 1 * mib);
    const auto plan = engine_of().explain(open("probe"), device(), 1 * mib, 0, false, how());
    if (!plan.ok()) GTEST_SKIP() << plan.error().message();
  }

  // No machine of ours has what dma_buf needs, so it runs on one that seems to.
  [[nodiscard]] static core::seams doors() {
    if (asked() == path_kind::dma_buf) return lending_machine().doors();
    return doors_with({}, is_further() ? further : std::vector<const path::declaration*>());
  }
  // It leaves edges to others, and all that cannot be aligned in memory and file at once.
  [[nodiscard]] static bool moves_blocks() { return asked() == path_kind::dma_buf; }
  // A shift of memory, for a range that begins at such an offset in the file, with which the path moves it.
  [[nodiscard]] static std::size_t shift_for(std::uint64_t offset, std::size_t usual) {
    return moves_blocks() ? static_cast<std::size_t>(offset % 4096) : usual;
  }
  [[nodiscard]] static bool is_further() { return !parse_path_kind(GetParam().path).ok(); }
  [[nodiscard]] static path_kind asked() { return *path::path_table(further).parse(GetParam().path); }
  [[nodiscard]] static memory_place place() { return GetParam().place; }
  [[nodiscard]] std::string device() const { return place() == memory_place::device ? house_.device() : ""; }
  [[nodiscard]] static io_options how() {
    io_options options;
    options.path = asked();
    options.cache = GetParam().cache;
    return options;
  }
  guarded_memory memory_of(std::size_t length, std::size_t shift = 0) { return {house_, place(), length, shift}; }

  // Of these paths only mapped, direct and dma_buf turn down some transfers of memory that they serve: what explain says of a range binds
  // them. It knows no address, and direct writes, and dma_buf moves, only what can be aligned in memory and file at once.
  bool serves(const file& of, bool is_write, std::uint64_t length, std::uint64_t offset, const std::byte* memory = nullptr) {
    if ((moves_blocks() || (asked() == path_kind::direct && is_write)) && memory != nullptr) {
      if ((reinterpret_cast<std::uintptr_t>(memory) - offset) % 4096 != 0) return false;
    }
    const auto plan = engine_of().explain(of, device(), length, static_cast<std::int64_t>(offset), is_write, how());
    if (plan.ok()) return true;
    EXPECT_EQ(plan.error().code(), errc::unsupported) << told(plan.error());
    EXPECT_TRUE(asked() == path_kind::mapped || asked() == path_kind::direct || asked() == path_kind::dma_buf) << told(plan.error());
    return false;
  }

  static void expect_refused(const io_result& outcome) {
    EXPECT_EQ(outcome.error.code(), errc::unsupported) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, 0U);
    EXPECT_NE(outcome.error.message().find(GetParam().path), std::string_view::npos) << told(outcome.error);
  }

  // Reads, and checks everything that a read promises. content: the file's.
  void check_read(const file& from, const bytes& content, std::uint64_t offset, std::uint64_t length, std::size_t shift = 0) {
    SCOPED_TRACE("read " + std::to_string(length) + " at " + std::to_string(offset) + " into memory shifted by " + std::to_string(shift));
    auto memory = memory_of(length, shift);
    const auto outcome = from.read(memory.data(), length, static_cast<std::int64_t>(offset), how());
    const std::uint64_t there = offset < content.size() ? std::min<std::uint64_t>(length, content.size() - offset) : 0;
    if (!serves(from, false, length, offset, there > 0 ? memory.data() : nullptr)) {
      expect_refused(outcome);
      memory.expect_untouched();
      return;
    }
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, there);
    memory.expect(there == 0 ? std::span<const std::byte>() : std::span(content).subspan(offset, there));
  }

  // Writes pattern bytes, and lays them over the expected content. Compare it with the file at the end.
  void check_write(const file& to, bytes& content, std::uint64_t offset, std::uint64_t length, std::uint64_t seed, std::size_t shift = 0) {
    SCOPED_TRACE("write " + std::to_string(length) + " at " + std::to_string(offset) + " from memory shifted by " + std::to_string(shift));
    const auto written = pattern::make(length, seed, offset);
    auto memory = memory_of(length, shift);
    memory.fill(written);
    const auto outcome = to.write(memory.data(), length, static_cast<std::int64_t>(offset), how());
    if (!serves(to, true, length, offset, memory.data())) {
      expect_refused(outcome);
    } else {
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, length);
      overlay(content, offset, written);
    }
    memory.expect_untouched();
  }
};

// --- reads

TEST_P(path_contract, reads_a_whole_file) {
  const auto content = make_file("data", large_file);
  const auto from = open("data");
  EXPECT_TRUE(serves(from, false, large_file, 0));
  check_read(from, content, 0, large_file);
}

TEST_P(path_contract, reads_any_length_offset_and_address) {
  const auto content = make_file("data", large_file + 10000);
  const auto from = open("data");
  for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{511}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{4097},
                                     128 * kib, 128 * kib + 1, 1 * mib + 3, 9 * mib + 5}) {
    check_read(from, content, 0, length, 0);
    check_read(from, content, 4096, length, 0);
    check_read(from, content, 1, length, 1);
    check_read(from, content, 8191, length, 13);
  }
}

TEST_P(path_contract, reads_what_is_cached_what_is_not_and_what_is_half) {
  const auto content = make_file("data", large_file);
  const auto from = open("data");
  for (const bool at_once : {true, false}) {
    drop_cache(name());
    if (at_once) {
      check_read(from, content, 0, large_file, 5);
    } else {
      check_read(from, content, 4097, 6 * mib + 1);
      check_read(from, content, 3 * mib, 6 * mib);
    }
  }
  check_read(from, content, 0, large_file);
  (void)contents_of(name());
  check_read(from, content, 77, large_file - 77);
  for (const std::uint64_t cold : {std::uint64_t{0}, 2 * mib, 5 * mib + 4096}) {
    (void)contents_of(name());
    drop_cache(name(), cold, 3 * mib);
    check_read(from, content, 0, large_file);
  }
}

TEST_P(path_contract, short_read_at_end_returns_bytes_done) {
  const auto content = make_file("data", 3 * mib + 1234);
  const auto from = open("data");
  for (const bool cold : {false, true}) {
    if (cold) drop_cache(name());
    check_read(from, content, 0, 4 * mib);
    check_read(from, content, 1 * mib + 1, 9 * mib);
    check_read(from, content, 3 * mib, 8192);
    check_read(from, content, content.size() - 1, 2 * mib);
  }
  const auto aligned = make_file("aligned", 2 * mib);
  drop_cache(name("aligned"));
  check_read(open("aligned"), aligned, 0, 8 * mib);
}

TEST_P(path_contract, read_at_or_after_end_moves_nothing) {
  const auto content = make_file("data", 5000);
  const auto from = open("data");
  for (const std::uint64_t length : {std::uint64_t{1}, 4 * mib}) {
    check_read(from, content, 5000, length);
    check_read(from, content, 5001, length);
    check_read(from, content, std::uint64_t{1} << 40, length);
  }
  const auto nothing = make_file("empty", 0);
  check_read(open("empty"), nothing, 0, 2 * mib);
}

TEST_P(path_contract, holes_are_read_as_zeros) {
  auto content = make_file("data", 4096);
  resize(name(), 20 * mib + 100);
  content.resize(20 * mib + 100);
  const auto from = open("data");
  check_read(from, content, 0, content.size());
  drop_cache(name());
  check_read(from, content, 2048, content.size());
}

// --- writes

TEST_P(path_contract, writes_any_length_offset_and_address_and_nothing_else) {
  auto content = make_file("data", large_file + 20000);
  const auto to = open_for_writing();
  std::uint64_t seed = 100;
  for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{511}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{4097},
                                     128 * kib, 128 * kib + 1, 1 * mib + 3, 9 * mib + 5}) {
    check_write(to, content, 0, length, ++seed, 0);
    check_write(to, content, 4096, length, ++seed, 0);
    check_write(to, content, 1, length, ++seed, 1);
    check_write(to, content, 8191, length, ++seed, 13);
    expect_file(name(), content);
  }
}

TEST_P(path_contract, what_was_written_is_read_back) {
  bytes content;
  const auto both = open_for_writing();
  check_write(both, content, 0, 5 * mib + 17, 7);
  check_read(both, content, 0, 6 * mib);
  ASSERT_TRUE(both.sync().ok());
  drop_cache(name());
  check_read(both, content, 0, 6 * mib);
}

TEST_P(path_contract, a_write_behind_the_end_leaves_a_hole_of_zeros) {
  auto content = make_file("data", 100);
  const auto to = open_for_writing();
  check_write(to, content, 3 * mib + 7, 2 * mib, 5);
  check_write(to, content, 7 * mib, 10, 6);
  expect_file(name(), content);
  EXPECT_EQ(to.size().value_or(0), content.size());
}

TEST_P(path_contract, direct_writes_keep_the_bytes_around_unaligned_edges) {
  auto content = make_file("data", 12 * mib);
  const auto to = open_for_writing("data", true);
  check_write(to, content, 1, 5 * mib, 21);
  check_write(to, content, 4096, 3 * mib, 22);
  check_write(to, content, 6 * mib - 100, 2 * mib + 200, 23, 3);
  check_write(to, content, 11 * mib + 5, 3 * mib, 24);
  expect_file(name(), content);
  check_read(to, content, 0, content.size());
  ASSERT_TRUE(to.sync().ok());
  drop_cache(name());
  expect_file(name(), content);
}

TEST_P(path_contract, neighbouring_writers_lose_nothing) {
  constexpr std::uint64_t border = 3 * mib + 1000;
  constexpr std::uint64_t end = 6 * mib + 77;
  for (std::uint64_t round = 0; round < 4; ++round) {
    auto content = make_file("data", end + 100, round);
    const auto first = open_for_writing("data", round % 2 == 0);
    const auto second = open_for_writing("data", round % 4 < 2);
    auto other = content;
    std::thread writer([&] { check_write(first, content, 5, border - 5, 50 + round); });
    check_write(second, other, border, end - border, 60 + round, 1);
    writer.join();
    std::copy(other.begin() + border, other.end(), content.begin() + border);
    expect_file(name(), content);
  }
}

// --- what is not to be done

TEST_P(path_contract, zero_bytes_are_moved_at_once) {
  make_file("data", 5000);
  const auto both = open_for_writing();
  auto memory = memory_of(100);
  for (const std::int64_t offset : {0, 100, 5000, 90000}) {
    EXPECT_TRUE(both.read(memory.data(), 0, offset, how()).ok());
    EXPECT_TRUE(both.write(memory.data(), 0, offset, how()).ok());
    EXPECT_TRUE(both.read(nullptr, 0, offset, how()).ok());
    EXPECT_TRUE(both.read_async(memory.data(), 0, offset, how()).wait().ok());
  }
  memory.expect_untouched();
  EXPECT_EQ(both.size().value_or(0), 5000U);
}

TEST_P(path_contract, ranges_that_no_file_has_are_invalid_arguments) {
  const auto content = make_file("data", 2 * mib);
  const auto both = open_for_writing();
  auto memory = memory_of(2 * mib);
  const auto expect_invalid = [](const io_result& outcome) {
    EXPECT_EQ(outcome.error.code(), errc::invalid_argument) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, 0U);
  };
  for (const std::int64_t offset :
       {std::int64_t{-1}, std::int64_t{-4096}, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max() - 1000}) {
    expect_invalid(both.read(memory.data(), 2 * mib, offset, how()));
    expect_invalid(both.write(memory.data(), 2 * mib, offset, how()));
    expect_invalid(both.read_async(memory.data(), 2 * mib, offset, how()).wait());
  }
  expect_invalid(both.read(memory.data(), std::numeric_limits<std::uint64_t>::max(), 1, how()));
  memory.expect_untouched();
  expect_file(name(), content);
}

TEST_P(path_contract, a_null_pointer_is_bad_memory) {
  make_file("data", 2 * mib);
  const auto both = open_for_writing();
  for (const std::uint64_t length : {std::uint64_t{1}, 2 * mib}) {
    EXPECT_EQ(both.read(nullptr, length, 0, how()).error.code(), errc::bad_memory);
    EXPECT_EQ(both.write(nullptr, length, 0, how()).error.code(), errc::bad_memory);
    EXPECT_EQ(both.read_async(nullptr, length, 0, how()).wait().error.code(), errc::bad_memory);
  }
}

TEST_P(path_contract, files_open_for_the_other_direction_refuse_by_name) {
  const auto content = make_file("data", 2 * mib);
  const auto reader = open("data");
  const auto writer = open("data", {.read = false, .write = true});
  auto memory = memory_of(2 * mib);
  for (const std::uint64_t length : {std::uint64_t{10}, 2 * mib}) {
    for (const auto& outcome : {reader.write(memory.data(), length, 0, how()), reader.write_async(memory.data(), length, 0, how()).wait(),
                                writer.read(memory.data(), length, 0, how()), writer.read_async(memory.data(), length, 0, how()).wait()}) {
      EXPECT_EQ(outcome.error.code(), errc::permission_denied) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, 0U);
      EXPECT_NE(outcome.error.message().find(name()), std::string_view::npos) << told(outcome.error);
    }
  }
  memory.expect_untouched();
  expect_file(name(), content);
}

TEST_P(path_contract, a_write_only_file_is_written) {
  auto content = make_file("data", 4 * mib);
  check_write(open("data", {.read = false, .write = true}), content, 1000, 2 * mib, 8);
  check_write(open("data", {.read = false, .write = true, .direct_writes = true}), content, 1 * mib + 1, 2 * mib, 9);
  expect_file(name(), content);
}

TEST_P(path_contract, an_expired_deadline_moves_nothing) {
  const auto content = make_file("data", 4 * mib);
  const auto both = open_for_writing();
  auto memory = memory_of(4 * mib);
  auto options = how();
  options.deadline = deadline_clock::now() - std::chrono::seconds(1);
  for (const std::uint64_t length : {std::uint64_t{10}, 4 * mib}) {
    for (const auto& outcome :
         {both.read(memory.data(), length, 0, options), both.read_async(memory.data(), length, 0, options).wait(),
          both.write(memory.data(), length, 0, options), both.write_async(memory.data(), length, 0, options).wait()}) {
      EXPECT_EQ(outcome.error.code(), errc::timed_out) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, 0U);
    }
  }
  memory.expect_untouched();
  expect_file(name(), content);
}

// --- without blocking

TEST_P(path_contract, operations_end_once_and_can_be_waited_for_again) {
  constexpr std::size_t length = 2 * mib;
  const auto content = make_file("data", 8 * length);
  const auto from = open("data");
  std::array<std::atomic<int>, 8> called{};
  std::vector<guarded_memory> memories;
  std::vector<operation> under_way;
  for (std::size_t i = 0; i < called.size(); ++i) memories.push_back(memory_of(length, shift_for(0, i)));
  for (std::size_t i = 0; i < called.size(); ++i) {
    under_way.push_back(
        from.read_async(memories[i].data(), length, static_cast<std::int64_t>(i * length), how(), [&, i](const io_result& outcome) {
          EXPECT_TRUE(outcome.ok()) << told(outcome.error);
          EXPECT_EQ(outcome.bytes_done, length);
          ++called[i];
        }));
  }
  for (std::size_t i = 0; i < called.size(); ++i) {
    EXPECT_TRUE(under_way[i].wait_for(std::chrono::hours(1)));
    EXPECT_TRUE(under_way[i].done());
    for (int again = 0; again < 2; ++again) {
      const auto outcome = under_way[i].wait();
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, length);
    }
    EXPECT_TRUE(under_way[i].wait_for(std::chrono::nanoseconds(0)));
    memories[i].expect(std::span(content).subspan(i * length, length));
  }
  under_way.clear();
  house_.end();  // callbacks run on its threads, which end with it
  while (std::any_of(called.begin(), called.end(), [](const auto& each) { return each.load() == 0; })) std::this_thread::yield();
  for (const auto& each : called) EXPECT_EQ(each.load(), 1);
}

TEST_P(path_contract, a_dropped_operation_goes_on) {
  const auto content = make_file("data", 4 * mib);
  auto memory = memory_of(4 * mib);
  std::atomic<bool> ended{false};
  {
    const auto from = open("data");
    (void)from.read_async(memory.data(), 4 * mib, 0, how(), [&](const io_result& outcome) {
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      ended.store(true);
    });
  }  // the file waits for what is under way
  memory.expect(content);
  while (!ended.load()) std::this_thread::yield();
}

TEST_P(path_contract, a_cancelled_read_tells_how_far_it_came) {
  constexpr std::size_t length = 16 * mib;
  const auto content = make_file("data", length);
  const auto from = open("data");
  for (int round = 0; round < 6; ++round) {
    if (round % 2 == 0) drop_cache(name());
    auto memory = memory_of(length, shift_for(0, 1));
    std::atomic<int> called{0};
    auto reading = from.read_async(memory.data(), length, 0, how(), [&](const io_result&) { ++called; });
    for (int i = 0; i < round * 200; ++i) std::this_thread::yield();
    reading.cancel();
    reading.cancel();
    const auto outcome = reading.wait();
    if (outcome.ok()) {
      EXPECT_EQ(outcome.bytes_done, length);
    } else {
      EXPECT_EQ(outcome.error.code(), errc::cancelled) << told(outcome.error);
      EXPECT_LT(outcome.bytes_done, length);
    }
    memory.expect_old_or_new(content, outcome.bytes_done);
    while (called.load() == 0) std::this_thread::yield();
    EXPECT_EQ(called.load(), 1);
  }
}

TEST_P(path_contract, a_cancelled_write_tells_how_far_it_came) {
  constexpr std::size_t length = 16 * mib;
  for (int round = 0; round < 4; ++round) {
    const auto before = make_file("data", length + 100);
    const auto to = open_for_writing("data", round % 2 == 0);
    if (!serves(to, true, length, 0)) return;
    const auto after = pattern::make(length, 99);
    auto memory = memory_of(length);
    memory.fill(after);
    auto writing = to.write_async(memory.data(), length, 0, how());
    for (int i = 0; i < round * 200; ++i) std::this_thread::yield();
    writing.cancel();
    const auto outcome = writing.wait();
    EXPECT_TRUE(outcome.ok() || outcome.error.code() == errc::cancelled) << told(outcome.error);
    const auto seen = contents_of(name());
    ASSERT_EQ(seen.size(), before.size());
    auto whole = before;
    auto least = before;
    overlay(whole, 0, after);
    overlay(least, 0, std::span(after).first(outcome.bytes_done));
    EXPECT_EQ(count_foreign(seen, whole, least), 0U);
    memory.expect_untouched();
  }
}

// --- together

TEST_P(path_contract, many_threads_read_and_write_at_once) {
  constexpr std::size_t threads = 8;
  constexpr std::uint64_t share = 3 * mib + 123;  // of the written file, for each thread
  const auto content = make_file("read", large_file);
  const auto shared_reader = open("read");
  const auto shared_writer = open_for_writing("written", true);
  const bool writes = serves(shared_writer, true, share, 0);
  std::vector<std::thread> crew;
  for (std::uint64_t t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      const auto own_reader = open("read");
      for (int i = 0; i < 6; ++i) {
        const std::uint64_t length = std::uint64_t{1} << (random() % 23);
        const auto& from = i % 2 == 0 ? shared_reader : own_reader;
        check_read(from, content, random() % large_file, length + random() % 3, random() % 5);
        if (!writes || i % 3 != 0) continue;
        auto memory = memory_of(share, shift_for(t * share, 0));
        memory.fill(pattern::make(share, t, t * share));
        auto writing = shared_writer.write_async(memory.data(), share, static_cast<std::int64_t>(t * share), how());
        const auto outcome = writing.wait();
        EXPECT_TRUE(outcome.ok()) << told(outcome.error);
        EXPECT_EQ(outcome.bytes_done, share);
      }
    });
  }
  for (auto& each : crew) each.join();
  if (!writes) return;
  const auto written = contents_of(name("written"));
  ASSERT_EQ(written.size(), threads * share);
  for (std::uint64_t t = 0; t < threads; ++t)
    EXPECT_EQ(pattern::first_difference(std::span(written).subspan(t * share, share), t, t * share), std::nullopt);
}

TEST_P(path_contract, counters_add_up) {
  const auto content = make_file("data", large_file);
  const auto from = open("data");
  for (int i = 0; i < 3; ++i) {
    check_read(from, content, 0, large_file);
    drop_cache(name());
  }
  const auto seen = engine_of().stats();
  EXPECT_EQ(seen.reads, 3U);
  EXPECT_EQ(seen.read_bytes, 3 * large_file);
  EXPECT_EQ(seen.writes + seen.failed + seen.cancelled + seen.timed_out, 0U);
  std::uint64_t carried = 0;
  for (const auto& path : seen.by_path) {
    carried += path.bytes;
    std::uint64_t by_size = 0;
    std::uint64_t by_time = 0;
    for (const auto count : path.size_histogram) by_size += count;
    for (const auto count : path.latency_histogram) by_time += count;
    EXPECT_EQ(by_size, path.operations);
    EXPECT_EQ(by_time, path.operations);
    EXPECT_EQ(path.errors, 0U);
  }
  EXPECT_EQ(carried, 3 * large_file);
  if (asked() != path_kind::automatic) {
    EXPECT_EQ(seen.path(asked()).bytes, 3 * (moves_blocks() ? large_file / 4096 * 4096 : large_file));
  }
  if (place() == memory_place::device && asked() == path_kind::staged) {
    EXPECT_GT(seen.pinned_bytes, 0U);
  }
  EXPECT_GE(seen.pinned_peak_bytes, seen.pinned_bytes);
}

TEST_P(path_contract, explain_covers_the_range_once) {
  make_file("data", large_file);
  const auto both = open_for_writing("data", true);
  for (const bool cold : {false, true}) {
    if (cold) {
      drop_cache(name());
    } else {
      (void)contents_of(name());
    }
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, 3 * mib + 7}) {
      for (const bool is_write : {false, true}) {
        const std::uint64_t length = large_file - offset;
        auto plan = engine_of().explain(both, device(), length, static_cast<std::int64_t>(offset), is_write, how());
        // The kernel may take pages back at any time.
        for (int tries = 0; tries < 10 && !cold && plan.ok() && plan->cached_bytes != length; ++tries) {
          (void)contents_of(name());
          plan = engine_of().explain(both, device(), length, static_cast<std::int64_t>(offset), is_write, how());
        }
        if (!plan.ok()) {
          EXPECT_EQ(plan.error().code(), errc::unsupported);
          continue;
        }
        std::uint64_t next = offset;
        for (const auto& part : plan->parts) {
          EXPECT_EQ(part.offset, next);
          EXPECT_NE(part.path, path_kind::automatic);
          EXPECT_FALSE(part.reason.empty());
          const bool is_edge = moves_blocks() && part.length < 4096;
          if (asked() != path_kind::automatic && !is_edge) {
            EXPECT_EQ(part.path, asked());
            EXPECT_EQ(part.path_name, GetParam().path);
          }
          next = part.offset + part.length;
        }
        EXPECT_EQ(next, large_file);
        EXPECT_LE(plan->cached_bytes, length);
        if (!cold) {
          EXPECT_EQ(plan->cached_bytes, length);
        }
      }
    }
  }
}

// --- files that change or go

TEST_P(path_contract, a_deleted_file_that_is_open_still_works) {
  auto content = make_file("data", 4 * mib + 3);
  const auto both = open_for_writing("data", true);
  remove(name());
  check_read(both, content, 0, content.size());
  check_write(both, content, 100, 3 * mib, 4);
  check_read(both, content, 0, content.size());
}

TEST_P(path_contract, a_file_that_shrinks_under_a_read_gives_fewer_bytes_but_no_wrong_ones) {
  constexpr std::size_t length = 12 * mib + 5;
  for (std::uint64_t round = 0; round < 8; ++round) {
    const auto content = make_file("data", length);
    if (round % 2 == 0) drop_cache(name());
    const std::uint64_t rest = 1 + round * 1600000;
    const auto from = open("data");
    auto memory = memory_of(length);
    auto reading = from.read_async(memory.data(), length, 0, how());
    resize(name(), rest);
    const auto outcome = reading.wait();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_GE(outcome.bytes_done, std::min<std::uint64_t>(rest, length));
    EXPECT_LE(outcome.bytes_done, length);
    const auto seen = memory.content();
    // A page that is cut off while it is read may be seen with its zeros.
    auto cut = content;
    std::fill(cut.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(rest, length)), cut.end(), std::byte{0});
    const std::size_t done = outcome.bytes_done;
    EXPECT_EQ(count_foreign(std::span(seen).first(done), std::span(content).first(done), std::span(cut).first(done)), 0U);
  }
}

// --- descriptors of the caller's

class descriptor_path_contract : public path_contract {};

TEST_P(descriptor_path_contract, a_lent_descriptor_is_used_and_stays_open) {
  for (const int flag : {0, O_DIRECT}) {
    SCOPED_TRACE(flag == 0 ? "without O_DIRECT" : "with O_DIRECT");
    auto content = make_file("data", 6 * mib + 11);
    const int fd = ::open(name().c_str(), O_RDWR | O_CLOEXEC | flag);
    if (fd < 0) GTEST_SKIP() << "the build's file system has no direct I/O";
    {
      auto lent = engine_of().adopt(fd);
      ASSERT_TRUE(lent.ok()) << told(lent.error());
      check_read(*lent, content, 0, content.size());
      check_read(*lent, content, 4097, 777, 1);
      drop_cache(name());
      check_read(*lent, content, 5, 3 * mib);
      check_write(*lent, content, 3, 5 * mib, 31);
      check_write(*lent, content, 4096, 4 * mib, 32);
      check_write(*lent, content, 10, 100, 33);
      EXPECT_TRUE(lent->close().ok());
    }
    EXPECT_GE(::fcntl(fd, F_GETFD), 0) << "still the caller's";
    ::close(fd);
    expect_file(name(), content);
  }
}

const auto local_files =
    ::testing::Values(contract_case{"automatic", memory_place::pageable}, contract_case{"automatic", memory_place::aligned},
                      contract_case{"automatic", memory_place::device}, contract_case{"posix", memory_place::pageable},
                      contract_case{"posix", memory_place::aligned}, contract_case{"staged", memory_place::device},
                      contract_case{"mapped", memory_place::device}, contract_case{"direct", memory_place::device},
                      contract_case{"dma_buf", memory_place::device}, contract_case{"heap", memory_place::device},
                      contract_case{"automatic", memory_place::device, file_home::disk, cache_use::automatic},
                      contract_case{"staged", memory_place::device, file_home::disk, cache_use::fill});

// The paths that need no descriptor.
const std::vector<contract_case> sources_in_memory = [] {
  std::vector<contract_case> cases;
  for (const auto home : {file_home::memory, file_home::cached_memory, file_home::far_memory}) {
    for (const auto place : {memory_place::pageable, memory_place::aligned}) {
      cases.push_back({"automatic", place, home});
      cases.push_back({"posix", place, home});
    }
    for (const auto* path : {"automatic", "staged", "heap"}) cases.push_back({path, memory_place::device, home});
    cases.push_back({"staged", memory_place::device, home, cache_use::fill});
  }
  return cases;
}();

INSTANTIATE_TEST_SUITE_P(paths, path_contract, local_files, name_of);
INSTANTIATE_TEST_SUITE_P(paths, descriptor_path_contract, local_files, name_of);
INSTANTIATE_TEST_SUITE_P(paths_and_sources_in_memory, path_contract, ::testing::ValuesIn(sources_in_memory), name_of);

// --- memory and sources that a path cannot reach

class refusing_path_contract : public path_contract {
 protected:
  void SetUp() override {}
};

TEST_P(refusing_path_contract, says_so_by_name_and_touches_nothing) {
  const auto content = make_file("data", 3 * mib);
  const auto both = open_for_writing();
  auto memory = memory_of(3 * mib);
  for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{4096}, 128 * kib + 1, 3 * mib}) {
    expect_refused(both.read(memory.data(), length, 0, how()));
    expect_refused(both.write(memory.data(), length, 0, how()));
    expect_refused(both.read_async(memory.data(), length, 0, how()).wait());
    expect_refused(both.write_async(memory.data(), length, 0, how()).wait());
    const std::array<io_request, 2> asked{{{&both, memory.data(), length, 0, false}, {&both, memory.data(), length, 0, true}}};
    for (const auto& outcome : engine_of().submit(asked, how()).wait()) expect_refused(outcome);
    for (const bool is_write : {false, true}) {
      const auto plan = engine_of().explain(both, device(), length, 0, is_write, how());
      EXPECT_EQ(plan.error().code(), errc::unsupported);
    }
  }
  memory.expect_untouched();
  expect_file(name(), content);
  const auto seen = engine_of().stats();
  EXPECT_EQ(seen.read_bytes + seen.written_bytes, 0U);
  EXPECT_GT(seen.failed, 0U);
}

INSTANTIATE_TEST_SUITE_P(paths, refusing_path_contract,
                         ::testing::Values(contract_case{"posix", memory_place::device}, contract_case{"staged", memory_place::pageable},
                                           contract_case{"staged", memory_place::aligned}, contract_case{"mapped", memory_place::pageable},
                                           contract_case{"mapped", memory_place::aligned}, contract_case{"direct", memory_place::pageable},
                                           contract_case{"heap", memory_place::pageable},
                                           contract_case{"mapped", memory_place::device, file_home::memory},
                                           contract_case{"mapped", memory_place::device, file_home::cached_memory},
                                           contract_case{"direct", memory_place::device, file_home::memory},
                                           contract_case{"dma_buf", memory_place::pageable},
                                           contract_case{"dma_buf", memory_place::device, file_home::memory}),
                         name_of);

}  // namespace
}  // namespace penstock::testing
