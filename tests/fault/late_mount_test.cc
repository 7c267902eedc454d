// File systems whose server answers late: what is not cached comes past the page cache, many reads at once, once that is known; and what
// else is read stays as it was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
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
  void SetUp() override {
    if (const auto reason = fuse_world::missing(); !reason.empty()) GTEST_SKIP() << reason;
    world_.emplace();
    data_ = &world_->add("data", size, seed);
    data_->delay_ms = 3;
    engine_.emplace(made_engine(without_cuda()));
    file_ = opened_file(*engine_, world_->path_of("data"));
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
  EXPECT_TRUE(any_part_says(before, "to see how late")) << before.parts.front().reason;
  EXPECT_TRUE(says(before.remarks, "a server brings the bytes"));
  expect_read(true, size, 0);
  const auto after = explained("host:0");
  EXPECT_TRUE(says(after.remarks, "this file system answers late: a read takes"));
  EXPECT_TRUE(any_part_says(after, "the file system answers late: direct I/O"));
}

TEST_F(late_mount, nothing_of_what_it_answers_late_stays_in_the_page_cache_unless_asked_for) {
  expect_read(true, size, 0);
  expect_read(true, size, 0);
  EXPECT_EQ(explained("host:0").cached_bytes, 0U);
  io_options keep;
  keep.cache = cache_use::keep;
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
}

}  // namespace
}  // namespace penstock::testing::late_mounts
