// Requests on a machine that seems to have Linux 7.4 and a GPU that exports its memory: the bytes that the drive transfers itself, those
// that are staged, and what is reported about both.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/engine_core.hpp"
#include "path/registry.hpp"
#include "support/child.hpp"
#include "support/lending_machine.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "sys/page_size.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t lent_mib = std::uint64_t{1} << 20;
constexpr std::uint64_t lent_file_bytes = 4 * lent_mib + 777;
constexpr auto by_dma_buf = path_kind::dma_buf;

class dma_buf_engine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = machine_.problem(); !problem.ok()) GTEST_SKIP() << problem.message();
    store_pattern(name_, lent_file_bytes, 1);
    restart();
  }
  ~dma_buf_engine() override {
    engine_.reset();
    EXPECT_EQ(world().registered, 0U);
    EXPECT_TRUE(world().broken_rules().empty()) << world().broken_rules().front();
  }

  // With the device in use: about any other, nobody is asked.
  void restart(const engine_options& options = {}) {
    engine_.emplace(*core::make_engine(options, machine_.doors()));
    const auto buffer = allocate();
    EXPECT_EQ(read(open(), buffer, 4096, 0, {.gpu_direct = false}).direct_bytes, 0U);
  }
  [[nodiscard]] lent_world& world() { return *machine_.world; }
  [[nodiscard]] file open(const std::string& name) {
    auto opened = engine_->open(name, {.read = true, .write = true});
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return *std::move(opened);
  }
  [[nodiscard]] file open() { return open(name_); }
  [[nodiscard]] device_buffer allocate(std::uint64_t bytes = 5 * lent_mib) {
    auto made = engine_->allocate("cuda:0", bytes);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  static std::byte* at(const device_buffer& buffer, std::uint64_t offset = 0) { return static_cast<std::byte*>(buffer.data()) + offset; }
  // Reads, whatever way, and looks at every byte.
  io_result read(const file& from, const device_buffer& into, std::uint64_t length, std::uint64_t offset = 0, const io_options& how = {}) {
    auto outcome = from.read(at(into, offset % 4096), length, static_cast<std::int64_t>(offset), how);
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    std::vector<std::byte> seen(outcome.bytes_done);
    EXPECT_TRUE(engine_->copy(seen.data(), at(into, offset % 4096), seen.size()).ok());
    EXPECT_EQ(pattern::first_difference(seen, 1, offset), std::nullopt);
    return outcome;
  }
  // What explain() says of this path where it is not taken.
  [[nodiscard]] std::string remark() {
    const auto told = engine_->explain(open(), "cuda:0", lent_mib, 0);
    EXPECT_TRUE(told.ok()) << told.error().message();
    for (const auto& each : told->remarks) {
      if (each.starts_with("dma_buf")) return each;
    }
    return {};
  }
  void expect_staged_because(const std::string& why) {
    const auto buffer = allocate();
    EXPECT_EQ(read(open(), buffer, lent_file_bytes).bytes_done, lent_file_bytes);
    EXPECT_EQ(engine_->stats().path(by_dma_buf).operations, 0U);
    EXPECT_EQ(engine_->stats().path(by_dma_buf).fallbacks, 0U);
    EXPECT_NE(remark().find(why), std::string::npos) << remark();
  }

  temp_dir folder_ = temp_dir::on_build_disk();
  std::string name_ = folder_.file("data");
  lending_machine machine_;
  std::optional<engine> engine_;
};

TEST(dma_buf_path, is_asked_behind_nvidias_library_and_before_staged) {
  const auto order = path::built_in_paths().by_rank();
  const auto place = [&](path_kind kind) { return std::find(order.begin(), order.end(), kind) - order.begin(); };
  EXPECT_LT(place(path_kind::direct), place(by_dma_buf));
  EXPECT_LT(place(by_dma_buf), place(path_kind::staged));
  EXPECT_EQ(path::built_in_paths().gpu_direct(), path_kind::direct);
}

TEST_F(dma_buf_engine, the_body_of_a_read_is_the_drives_and_its_edges_are_staged) {
  const auto from = open();
  const auto buffer = allocate();
  const auto whole = read(from, buffer, lent_file_bytes);
  EXPECT_EQ(whole.bytes_done, lent_file_bytes);
  EXPECT_EQ(whole.direct_bytes, 4 * lent_mib);
  const auto inner = read(from, buffer, lent_mib, 100);
  EXPECT_EQ(inner.direct_bytes, lent_mib - 4096);
  const auto seen = engine_->stats();
  EXPECT_EQ(seen.path(by_dma_buf).bytes, whole.direct_bytes + inner.direct_bytes);
  EXPECT_EQ(seen.path(by_dma_buf).fallbacks, 0U);
  EXPECT_EQ(world().registered, 1U) << "one allocation, one file";
  const auto told = engine_->explain(from, "cuda:0", lent_mib, 0);
  ASSERT_TRUE(told.ok()) << told.error().message();
  EXPECT_EQ(told->parts.front().path_name, "dma_buf");
  EXPECT_NE(told->parts.front().reason.find("dma-buf"), std::string::npos);
}

TEST_F(dma_buf_engine, writes_of_whole_blocks_are_the_drives_and_small_ones_are_not) {
  const auto to = open();
  const auto buffer = allocate();
  const std::uint64_t page = std::max<std::uint64_t>(4096, sys::page_size());
  const auto written = pattern::make(2 * lent_mib, 2);
  EXPECT_TRUE(engine_->copy(buffer.data(), written.data(), written.size()).ok());
  EXPECT_EQ(to.write(at(buffer), 2 * lent_mib, 0).direct_bytes, 2 * lent_mib);
  EXPECT_EQ(to.write(at(buffer, page), page, static_cast<std::int64_t>(2 * lent_mib)).direct_bytes, 0U) << "nobody has measured that";
  EXPECT_EQ(to.write(at(buffer), 100, 0).direct_bytes, 0U);
  std::vector<std::byte> seen(2 * lent_mib + page);
  std::ifstream(name_, std::ios::binary).read(reinterpret_cast<char*>(seen.data()), static_cast<std::streamsize>(seen.size()));
  const std::span all(seen);
  EXPECT_EQ(pattern::first_difference(all.first(2 * lent_mib), 2, 0), std::nullopt);
  EXPECT_EQ(pattern::first_difference(all.last(page), 2, page), std::nullopt);
}

TEST_F(dma_buf_engine, memory_that_is_not_aligned_as_the_file_is_staged_and_refused_where_the_path_was_asked_for) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(from.read(at(buffer, 512), lent_mib, 0).direct_bytes, 0U);
  io_options only;
  only.path = by_dma_buf;
  const auto refused = from.read(at(buffer, 512), lent_mib, 0, only);
  EXPECT_EQ(refused.error.code(), errc::unsupported);
  EXPECT_NE(refused.error.message().find("whole blocks"), std::string_view::npos) << refused.error.message();
}

// --- who refuses

TEST_F(dma_buf_engine, an_old_kernel_is_named) {
  world().kernel_refuses = EINVAL;
  expect_staged_because("7.4");
}

TEST_F(dma_buf_engine, a_kernel_that_has_no_room_for_a_ring_is_asked_a_few_times) {
  world().no_rings = ENOMEM;
  const auto from = open();
  const auto buffer = allocate();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(read(from, buffer, 256 << 10).direct_bytes, 0U);
  EXPECT_EQ(world().rings_refused, 8U);
  EXPECT_NE(remark().find("io_uring cannot be used"), std::string::npos) << remark();
}

TEST_F(dma_buf_engine, a_kernel_that_had_no_room_for_a_moment_is_asked_again) {
  world().no_rings = ENOMEM;
  EXPECT_NE(remark(), "");
  world().no_rings = 0;
  EXPECT_EQ(remark(), "");
}

TEST_F(dma_buf_engine, of_files_that_no_drive_can_take_the_page_cache_is_asked_no_more_than_without_gpu_direct) {
  world().has_no_direct = true;
  const auto from = open();
  const auto buffer = allocate();
  const auto asked_by = [&](const io_options& how) {
    const unsigned before = world().residency_asked;
    EXPECT_EQ(read(from, buffer, 4096, 0, how).bytes_done, 4096U);
    return world().residency_asked - before;
  };
  EXPECT_EQ(asked_by({}), asked_by({.gpu_direct = false}));
}

TEST_F(dma_buf_engine, the_device_of_a_drive_is_asked_though_its_file_system_refuses) {
  const auto name = folder_.file("raw");
  store_pattern(name, lent_file_bytes, 1);
  world().file_refuses = EOPNOTSUPP;
  EXPECT_NE(remark(), "");
  world().file_refuses = 0;
  struct stat seen {};
  ASSERT_EQ(::stat(name.c_str(), &seen), 0);
  world().raw_inode = seen.st_ino;
  const auto raw = open(name);
  const auto buffer = allocate();
  EXPECT_EQ(read(raw, buffer, lent_mib).direct_bytes, lent_mib);
  EXPECT_NE(remark(), "");
}

TEST_F(dma_buf_engine, an_engine_that_is_to_use_no_io_uring_uses_none) {
  engine_options without;
  without.use_io_uring = false;
  restart(without);
  expect_staged_because("is switched off");
}

TEST_F(dma_buf_engine, a_driver_that_lends_nothing_is_named) {
  world().driver_refuses = true;
  expect_staged_because("the open one");
}

TEST_F(dma_buf_engine, a_file_system_that_takes_none_is_named_and_not_asked_again) {
  world().file_refuses = EOPNOTSUPP;
  expect_staged_because("the file system does not accept dma-bufs");
  world().file_refuses = 0;
  expect_staged_because("the file system does not accept dma-bufs");
  restart();
  EXPECT_EQ(remark(), "") << "a new engine asks";
}

TEST_F(dma_buf_engine, want_of_descriptors_is_no_answer_about_the_file_system) {
  world().file_refuses = EMFILE;
  EXPECT_NE(remark(), "");
  world().file_refuses = 0;
  EXPECT_EQ(remark(), "");
}

TEST_F(dma_buf_engine, a_file_without_a_whole_block_shows_nothing) {
  const auto name = folder_.file("short");
  store_pattern(name, 100, 1);
  const unsigned allocated = world().allocated;
  const auto told = engine_->explain(open(name), "cuda:0", 100, 0, false, {.path = by_dma_buf});
  EXPECT_EQ(world().allocated, allocated) << "there is nothing to read into it";
  EXPECT_NE(told.error().message().find("too short"), std::string_view::npos) << told.error().message();
  EXPECT_EQ(remark(), "");
}

TEST_F(dma_buf_engine, bytes_that_never_arrive_are_noticed_before_the_first_request) {
  world().loses_bytes = true;
  expect_staged_because("had not arrived");
  world().loses_bytes = false;
  expect_staged_because("had not arrived");
}

// --- what goes wrong under way

TEST_F(dma_buf_engine, memory_that_the_device_takes_back_is_tried_again) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().takes_back = 50;
  EXPECT_EQ(read(from, buffer, 2 * lent_mib).direct_bytes, 2 * lent_mib);
  EXPECT_EQ(engine_->stats().path(by_dma_buf).fallbacks, 0U);
}

TEST_F(dma_buf_engine, memory_that_the_device_takes_back_again_and_again_is_staged) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().takes_back = ~0U;
  EXPECT_EQ(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
  const auto seen = engine_->stats();
  EXPECT_EQ(seen.path(by_dma_buf).fallbacks, 1U);
  EXPECT_NE(seen.path(by_dma_buf).last_fallback.find("revoked access to its memory"), std::string::npos)
      << seen.path(by_dma_buf).last_fallback;
}

TEST_F(dma_buf_engine, a_drive_that_moves_less_than_asked_is_asked_for_the_rest) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().most_moved = 128 << 10;
  EXPECT_EQ(read(from, buffer, 2 * lent_mib).direct_bytes, 2 * lent_mib);
  world().most_moved = 5000;
  EXPECT_EQ(read(from, buffer, 2 * lent_mib).direct_bytes, 5000U);
  EXPECT_EQ(engine_->stats().path(by_dma_buf).fallbacks, 1U);
}

TEST_F(dma_buf_engine, a_failed_request_goes_on_staged_from_where_it_was) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().fails_after = world().requests + 1;
  const auto outcome = read(from, buffer, 4 * lent_mib);
  EXPECT_EQ(outcome.bytes_done, 4 * lent_mib);
  EXPECT_EQ(outcome.direct_bytes, lent_mib);
  const auto seen = engine_->stats();
  EXPECT_NE(seen.path(by_dma_buf).last_fallback.find(name_), std::string::npos) << seen.path(by_dma_buf).last_fallback;
}

TEST_F(dma_buf_engine, memory_that_cannot_be_lent_is_staged_with_the_drivers_reason) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().memory_refuses = true;
  EXPECT_EQ(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
  EXPECT_NE(engine_->stats().path(by_dma_buf).last_fallback.find("801"), std::string::npos);
}

TEST_F(dma_buf_engine, a_drive_for_which_nothing_can_be_lent_is_given_up_in_the_end) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().memory_refuses = true;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(from, buffer, lent_mib).direct_bytes, 0U);
  EXPECT_EQ(engine_->stats().path(by_dma_buf).fallbacks, 16U);
  EXPECT_NE(remark().find("801"), std::string::npos) << remark();
}

TEST_F(dma_buf_engine, a_write_of_which_the_ring_does_not_tell_ends_with_an_error) {
  const auto both = open();
  const auto buffer = allocate();
  EXPECT_EQ(remark(), "");
  world().is_silent = true;
  const auto written = both.write(at(buffer), lent_mib, 0);
  EXPECT_EQ(written.error.code(), errc::io) << written.error.message();
  EXPECT_EQ(written.bytes_done, 0U);
  EXPECT_EQ(engine_->stats().path(by_dma_buf).fallbacks, 0U) << "another's write could be undone";
  world().is_silent = false;
  world().registered = 0;  // what a ring has that nobody ends
  EXPECT_TRUE(both.write(at(buffer), lent_mib, 0).ok());
}

// --- until when memory is lent

TEST_F(dma_buf_engine, a_file_that_is_closed_lets_go_of_what_was_lent_to_it) {
  const auto buffer = allocate();
  {
    const auto from = open();
    EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
    EXPECT_EQ(world().registered, 1U);
  }
  EXPECT_EQ(world().registered, 0U);
}

TEST_F(dma_buf_engine, memory_that_is_released_is_not_lent_any_more) {
  const auto from = open();
  {
    const auto buffer = allocate();
    EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
    EXPECT_EQ(world().registered, 1U);
  }
  EXPECT_EQ(world().registered, 0U);
}

TEST_F(dma_buf_engine, trim_lets_go_of_all) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
  (void)engine_->trim();
  EXPECT_EQ(world().registered, 0U);
  EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
}

TEST_F(dma_buf_engine, a_forked_child_is_told_and_the_parent_reads_on) {
  const auto from = open();
  const auto buffer = allocate();
  EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
  const int outcome = run_in_child([&] { return from.read(at(buffer), lent_mib, 0).error.code() == errc::forked ? 0 : 1; });
  EXPECT_EQ(outcome, 0);
  EXPECT_GT(read(from, buffer, 2 * lent_mib).direct_bytes, 0U);
}

}  // namespace
}  // namespace penstock::testing
