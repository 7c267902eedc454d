// File systems with a slow server: once that is detected, uncached bytes are read past the page cache with many concurrent reads. Other
// reads do not change.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/engine_core.hpp"
#include "support/engines.hpp"
#include "support/fuse_world.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing::late_mounts {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t seed = 77;
constexpr std::uint64_t size = 24 * mib + 4096 * 3 + 5;

bool says(const std::vector<std::string>& lines, const std::string& what) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

bool any_part_says(const plan& told, const std::string& what) {
  return std::ranges::any_of(told.parts, [&](const plan_part& part) { return part.reason.find(what) != std::string::npos; });
}

class late_mount : public ::testing::Test {
 protected:
  void SetUp() override { start(true, false); }

  void start(bool use_io_uring, bool refuses_direct) {
    if (const auto reason = fuse_world::missing(); !reason.empty()) GTEST_SKIP() << reason;
    world_.emplace();
    data_ = &world_->add("data", size, seed);
    data_->delay_ms = 3;
    data_->refuses_direct = refuses_direct ? 1 : 0;
    auto options = without_cuda();
    options.use_io_uring = use_io_uring;
    engine_.emplace(made_engine(options));
    file_ = opened_file(*engine_, world_->path_of("data"));
  }

  // Out of the page cache, so that the server is asked again.
  void cool() const {
    const int fd = ::open(world_->path_of("data").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
  }

  void expect_read(bool on_device, std::uint64_t length, std::uint64_t offset, const io_options& options = {}) {
    SCOPED_TRACE(fmt::format("{} at {}, {}", length, offset, on_device ? "device" : "host"));
    std::vector<std::byte> seen(length, std::byte{0xa7});
    device_buffer memory;
    if (on_device) {
      auto made = engine_->allocate("host:0", length);
      ASSERT_TRUE(made.ok()) << made.error().message();
      memory = *std::move(made);
    }
    const auto outcome = file_.read(on_device ? memory.data() : seen.data(), length, static_cast<std::int64_t>(offset), options);
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, std::min(length, size - offset));
    if (on_device) {
      ASSERT_TRUE(engine_->copy(seen.data(), memory.data(), length).ok());
    }
    seen.resize(outcome.bytes_done);
    EXPECT_EQ(pattern::first_difference(seen, seed, offset), std::nullopt);
  }

  plan explained(const char* device) {
    auto told = engine_->explain(file_, device, size, 0);
    EXPECT_TRUE(told.ok()) << told.error().message();
    return told ? *told : plan{};
  }

  const thread_watchdog watch_{::testing::UnitTest::GetInstance()->current_test_info()->name()};
  std::optional<fuse_world> world_;
  fuse_file_control* data_ = nullptr;
  std::optional<engine> engine_;
  file file_;
};

TEST_F(late_mount, a_first_read_finds_out_how_late_it_answers) {
  const auto before = explained("host:0");
  EXPECT_TRUE(any_part_says(before, "to measure how slowly")) << before.parts.front().reason;
  EXPECT_TRUE(says(before.remarks, "a server provides the bytes"));
  expect_read(true, size, 0);
  const auto after = explained("host:0");
  EXPECT_TRUE(says(after.remarks, "this file system answers slowly: a read takes"));
  EXPECT_TRUE(any_part_says(after, "the file system answers slowly: direct I/O"));
  EXPECT_GT(engine_->stats().usage.late_read_bytes, 0U);
  EXPECT_GT(engine_->stats().usage.late_read_ns, 0U);
}

TEST_F(late_mount, memory_of_the_host_is_read_the_same_way) {
  expect_read(false, size, 0);
  const auto told = explained("host");
  EXPECT_TRUE(any_part_says(told, "the file system answers slowly: direct I/O"));
  EXPECT_LE(told.cached_bytes.value_or(0), 4 * mib) << "the edges alone";
  expect_read(false, size, 0);
}

// How late it answers is known after the first of them.
TEST_F(late_mount, calls_in_order_are_fetched_ahead_into_the_page_cache) {
  expect_read(false, 4096, 20 * mib);
  for (std::uint64_t at = 0; at < 6 * mib; at += mib / 2) expect_read(at % mib == 0, mib / 2, at);
  EXPECT_GE(explained("host").cached_bytes.value_or(0), 2 * mib);
}

TEST_F(late_mount, many_small_reads_are_under_way_at_once) {
  expect_read(false, mib, 0);
  constexpr std::size_t count = 300;
  std::vector<std::byte> seen(count * 4096);
  std::vector<io_request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(
        {.target = &file_, .memory = seen.data() + i * 4096, .length = 4096, .offset = static_cast<std::int64_t>(i * 65536)});
  }
  for (const auto& each : engine_->submit(requests).wait()) EXPECT_EQ(each.bytes_done, 4096U) << each.error.message();
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(pattern::first_difference(std::span(seen).subspan(i * 4096, 4096), seed, i * 65536), std::nullopt) << i;
  }
}

// Whatever has been found out: what is queued behind a server that has gone keeps its deadline, and files elsewhere are read.
TEST_F(late_mount, a_server_that_goes_away_holds_up_nobody_else) {
  expect_read(true, size, 0);
  const auto directory = temp_dir::on_build_disk();
  store_pattern(directory.file("other"), 3 * mib, seed);
  const auto other = opened_file(*engine_, directory.file("other"));
  data_->held_calls = fuse_reads;
  std::vector<std::byte> memory(size);
  auto stuck = file_.read_async(memory.data(), size, 0);
  while (data_->held_now.load() == 0) std::this_thread::yield();
  std::vector<std::byte> seen(3 * mib);
  EXPECT_EQ(other.read(seen.data(), seen.size(), 0).bytes_done, seen.size());
  EXPECT_EQ(pattern::first_difference(seen, seed, 0), std::nullopt);
  world_->release_all();
  EXPECT_EQ(stuck.wait().bytes_done, size);
}

TEST_F(late_mount, an_error_of_the_server_is_the_error_of_the_read) {
  expect_read(true, size, 0);
  data_->fails_from = 8 * mib;
  for (const bool asynchronous : {false, true}) {
    std::vector<std::byte> memory(size);
    const auto outcome = asynchronous ? file_.read_async(memory.data(), size, 0).wait() : file_.read(memory.data(), size, 0);
    EXPECT_EQ(outcome.error.code(), errc::io) << outcome.error.message();
    EXPECT_LE(outcome.bytes_done, 8 * mib);
  }
}

// Without a ring, or without O_DIRECT, threads wait for it.
class late_mount_by_threads : public late_mount, public ::testing::WithParamInterface<std::tuple<bool, bool>> {
 protected:
  void SetUp() override { start(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(late_mount_by_threads, all_bytes_come_and_it_is_known_to_be_late) {
  for (const bool on_device : {false, true}) {
    for (int i = 0; i < 2; ++i) {
      cool();
      expect_read(on_device, size, 0);
      cool();
      expect_read(on_device, 3 * mib + 5, mib + 7);
    }
    EXPECT_TRUE(says(explained(on_device ? "host:0" : "host").remarks, "this file system answers slowly"));
  }
}

TEST_P(late_mount_by_threads, a_server_that_goes_away_holds_up_nobody_else) {
  expect_read(false, size, 0);
  const auto directory = temp_dir::on_build_disk();
  store_pattern(directory.file("other"), 3 * mib, seed);
  const auto other = opened_file(*engine_, directory.file("other"));
  cool();
  data_->held_calls = fuse_reads;
  std::vector<std::byte> memory(size);
  auto stuck = file_.read_async(memory.data(), size, 0);
  while (data_->held_now.load() == 0) std::this_thread::yield();
  std::vector<std::byte> seen(3 * mib);
  EXPECT_EQ(other.read(seen.data(), seen.size(), 0).bytes_done, seen.size());
  world_->release_all();
  EXPECT_EQ(stuck.wait().bytes_done, size);
}

INSTANTIATE_TEST_SUITE_P(ways, late_mount_by_threads,
                         ::testing::Values(std::tuple(true, true), std::tuple(false, true), std::tuple(false, false)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param) ? "ring" : "no_ring",
                                              std::get<1>(info.param) ? "no_direct" : "direct");
                         });

TEST_F(late_mount, nothing_of_what_it_answers_late_stays_in_the_page_cache_unless_asked_for) {
  expect_read(true, size, 0);
  expect_read(true, size, 0);
  EXPECT_EQ(explained("host:0").cached_bytes, 0U);
  io_options keep;
  keep.cache = cache_use::fill;
  expect_read(true, size, 0, keep);
  EXPECT_EQ(explained("host:0").cached_bytes, size);
}

TEST_F(late_mount, ranges_of_any_alignment_come_as_they_are) {
  for (const bool on_device : {true, false}) {
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, 3 * mib + 77, std::uint64_t{8192}, size - 9000}) {
      for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{5000}, mib, 5 * mib + 3}) expect_read(on_device, length, offset);
    }
  }
}

// A disk has no server.
TEST(a_disk, is_not_asked_how_late_it_answers) {
  const auto directory = temp_dir::on_build_disk();
  const auto path = directory.file("data");
  store_pattern(path, 8 * mib, seed);
  const auto engine = made_engine(without_cuda());
  const auto file = opened_file(engine, path);
  for (const char* device : {"host:0", "host"}) {
    const auto told = engine.explain(file, device, 8 * mib, 0);
    ASSERT_TRUE(told.ok());
    EXPECT_FALSE(says(told->remarks, "server"));
    EXPECT_FALSE(says(told->remarks, "late"));
    EXPECT_FALSE(any_part_says(*told, "late"));
  }
  std::vector<std::byte> seen(8 * mib);
  EXPECT_EQ(file.read(seen.data(), seen.size(), 0).bytes_done, seen.size());
  EXPECT_EQ(engine.stats().usage.late_read_bytes, 0U);
}

}  // namespace
}  // namespace penstock::testing::late_mounts
