// Transfers through the page cache that leave nothing there, if the kernel supports it, and their fallback if it does not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "source/local_file.hpp"
#include "support/faulty_kernel.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"

namespace penstock::source {
namespace {

namespace made = penstock::testing::pattern;

class uncached_transfers : public ::testing::Test {
 protected:
  static constexpr std::uint64_t length = (std::uint64_t{8} << 20) + 100;

  std::unique_ptr<local_file> open() {
    auto opened = local_file::open(*kernel_, name_, {.read = true, .write = true, .create = true});
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return *std::move(opened);
  }
  std::unique_ptr<local_file> with_content() {
    auto file = open();
    EXPECT_EQ(file->drain(content_.data(), length, 0).bytes_done, length);
    EXPECT_TRUE(file->sync().ok());
    return file;
  }
  void expect_read(local_file& file) {
    std::vector<std::byte> seen(length);
    const auto got = file.fill(seen.data(), length, 0, caching::uncached);
    EXPECT_TRUE(got.ok()) << got.error.message();
    EXPECT_EQ(got.bytes_done, length);
    EXPECT_EQ(seen, content_);
  }
  // Whether the test can tell what is in the page cache, of which nothing is.
  bool cools(local_file& file) {
    EXPECT_TRUE(kernel_->drop_cache(file.descriptor(), 0, 0).ok());
    const auto left = file.resident_bytes(0, length);
    return left && *left == 0;
  }

  penstock::testing::temp_dir directory_ = penstock::testing::temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  std::shared_ptr<penstock::testing::faulty_kernel> kernel_ = std::make_shared<penstock::testing::faulty_kernel>();
  std::vector<std::byte> content_ = made::make(length, 7);
};

TEST_F(uncached_transfers, where_they_are_refused_bytes_go_the_usual_way_and_nobody_asks_again) {
  auto file = with_content();
  EXPECT_TRUE(file->uncached_problem().ok()) << "nobody knows yet";
  kernel_->fail({.call = "pread_uncached", .error = EOPNOTSUPP, .lasting = true});
  expect_read(*file);
  EXPECT_EQ(file->uncached_problem().code(), errc::unsupported);
  expect_read(*file);
  EXPECT_EQ(kernel_->count("pread_uncached"), 1U);
  const auto written = open()->drain(content_.data(), length, 100, {caching::uncached});
  EXPECT_TRUE(written.ok()) << written.error.message();
  EXPECT_EQ(kernel_->count("pwrite_uncached"), 0U) << "it is the same file system";
}

TEST_F(uncached_transfers, a_refused_write_goes_the_usual_way) {
  kernel_->fail({.call = "pwrite_uncached", .error = EOPNOTSUPP, .lasting = true});
  auto file = open();
  const auto written = file->drain(content_.data(), length, 0, {caching::uncached});
  EXPECT_TRUE(written.ok()) << written.error.message();
  EXPECT_EQ(written.bytes_done, length);
  expect_read(*file);
}

TEST_F(uncached_transfers, other_errors_and_short_counts_are_as_of_any_transfer) {
  auto file = with_content();
  if (expect_read(*file); !file->uncached_problem().ok()) GTEST_SKIP() << file->uncached_problem().message();
  kernel_->shorten({.call = "pread_uncached", .bytes = 4097});
  kernel_->shorten({.call = "pwrite_uncached", .bytes = 4097});
  expect_read(*file);
  EXPECT_EQ(file->drain(content_.data(), length, 0, {caching::uncached}).bytes_done, length);
  kernel_->fail({.call = "pread_uncached", .error = EIO});
  kernel_->fail({.call = "pwrite_uncached", .error = ENOSPC});
  std::vector<std::byte> seen(length);
  EXPECT_EQ(file->fill(seen.data(), length, 0, caching::uncached).error.code(), errc::io);
  EXPECT_EQ(file->drain(content_.data(), length, 0, {caching::uncached}).error.code(), errc::no_space);
  EXPECT_TRUE(file->uncached_problem().ok());
}

TEST_F(uncached_transfers, what_is_read_does_not_stay_in_the_page_cache) {
  auto file = with_content();
  if (!cools(*file)) GTEST_SKIP() << directory_.path() << " keeps its pages";
  expect_read(*file);
  if (!file->uncached_problem().ok()) GTEST_SKIP() << file->uncached_problem().message();
  EXPECT_LT(file->resident_bytes(0, length).value_or(length), length / 8);
}

TEST_F(uncached_transfers, what_is_written_to_a_new_file_does_not_stay_in_the_page_cache) {
  auto file = open();
  const auto written = file->drain(content_.data(), length, 0, {caching::uncached});
  EXPECT_TRUE(written.ok()) << written.error.message();
  if (!file->uncached_problem().ok()) GTEST_SKIP() << file->uncached_problem().message();
  EXPECT_TRUE(file->sync().ok());
  const auto left = file->resident_bytes(0, length);
  EXPECT_LT(left.value_or(0), length / 8);
  expect_read(*file);
}

}  // namespace
}  // namespace penstock::source
