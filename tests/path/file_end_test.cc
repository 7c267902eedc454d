// Where a file ends: where the kernel's own count is 0, whatever size it states.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "path/file_io.hpp"
#include "path/lying_kernel.hpp"
#include "path/registry.hpp"
#include "support/faulty_kernel.hpp"
#include "support/lone_link.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"

namespace penstock::path {
namespace {

using penstock::testing::faulty_kernel;
using penstock::testing::lone_link;
using penstock::testing::lying_kernel;
using penstock::testing::temp_dir;
namespace pattern = penstock::testing::pattern;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t seed = 5;
constexpr std::uint64_t size = 3 * mib + 100;

struct aligned_bytes {
  explicit aligned_bytes(std::size_t length) : length(length), data(static_cast<std::byte*>(std::aligned_alloc(4096, length))) {}
  aligned_bytes(const aligned_bytes&) = delete;
  aligned_bytes& operator=(const aligned_bytes&) = delete;
  ~aligned_bytes() { std::free(data); }
  std::size_t length;
  std::byte* data;
};

class file_end : public ::testing::Test {
 protected:
  file_end() {
    file_.name = dir_.file("data");
    file_.cached_fd = ::open(file_.name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto content = pattern::make(size, seed);
    EXPECT_EQ(::pwrite(file_.cached_fd, content.data(), size, 0), static_cast<ssize_t>(size));
    file_.direct_fd = ::open(file_.name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  }
  void SetUp() override {
    if (file_.direct_fd < 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
    cached_.cached_fd = file_.cached_fd;
    direct_.direct_fd = file_.direct_fd;
  }
  ~file_end() override {
    ::close(file_.cached_fd);
    if (file_.direct_fd >= 0) ::close(file_.direct_fd);
  }

  temp_dir dir_ = temp_dir::on_build_disk();
  file_view file_, cached_, direct_;
  std::shared_ptr<lying_kernel> kernel_ = std::make_shared<lying_kernel>(0);
};

TEST_F(file_end, is_where_nothing_comes_by_any_descriptor) {
  for (const auto* view : {&file_, &cached_, &direct_}) {
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{5}, mib, 3 * mib, size - 1}) {
      EXPECT_EQ(ends_at(*kernel_, *view, at).value_or(true), false) << at;
    }
    for (const std::uint64_t at : {size, size + 1, 4 * mib}) EXPECT_EQ(ends_at(*kernel_, *view, at).value_or(false), true) << at;
  }
  file_view nothing;
  EXPECT_FALSE(ends_at(*kernel_, nothing, 0).ok());
}

TEST_F(file_end, of_a_file_of_the_kernel_that_states_no_size) {
  file_view version{.name = "/proc/version"};
  version.cached_fd = ::open("/proc/version", O_RDONLY | O_CLOEXEC);
  std::vector<std::byte> text(4096);
  const auto kernel = sys::make_kernel();
  EXPECT_EQ(kernel->file_size(version.cached_fd).value_or(1), 0U);
  const auto read = read_fully(*kernel, version, text.data(), text.size(), 0);
  EXPECT_GT(read.bytes_done, 10U);
  EXPECT_EQ(ends_at(*kernel, version, read.bytes_done - 1).value_or(true), false);
  EXPECT_EQ(ends_at(*kernel, version, read.bytes_done).value_or(false), true);
  ::close(version.cached_fd);
}

TEST_F(file_end, a_direct_read_that_stops_early_goes_on_whatever_size_is_stated) {
  for (const auto* view : {&file_, &direct_}) {
    const auto faulty = std::make_shared<faulty_kernel>(kernel_);
    faulty->shorten({.call = "pread", .nth = 1, .bytes = mib + 17});
    faulty->shorten({.call = "pread", .nth = 4, .bytes = 4096});
    aligned_bytes memory(4 * mib);
    const auto read = read_direct(*faulty, *view, memory.data, 4 * mib, 0);
    EXPECT_TRUE(read.ok()) << read.error.message();
    EXPECT_EQ(read.bytes_done, size);
    EXPECT_EQ(pattern::first_difference(std::span(memory.data, size), seed, 0), std::nullopt);
  }
  const auto faulty = std::make_shared<faulty_kernel>(kernel_);
  faulty->shorten({.call = "pread", .nth = 1, .bytes = 5000});
  std::vector<std::byte> odd(2 * mib + 3);
  const auto read = read_fully(*faulty, direct_, odd.data(), odd.size(), mib + 9);
  EXPECT_EQ(read.bytes_done, odd.size());
  EXPECT_EQ(pattern::first_difference(odd, seed, mib + 9), std::nullopt);
}

TEST_F(file_end, a_read_of_the_last_bytes_that_fails_is_no_end) {
  const auto faulty = std::make_shared<faulty_kernel>(kernel_);
  faulty->fail({.call = "pread", .nth = 2, .error = EIO});
  aligned_bytes memory(4 * mib);
  const auto read = read_direct(*faulty, file_, memory.data, 4 * mib, 0);
  EXPECT_EQ(read.error.native(), EIO);
}

// --- mapped

struct ending_owner final : job_owner {
  void finished(job& /*ended*/, std::uint64_t bytes, status error) override {
    finished_bytes = bytes;
    outcome = std::move(error);
  }
  void hand_over(job& refused, status why) override {
    handed_over_after = refused.moved;
    outcome = std::move(why);
  }
  [[nodiscard]] status stopped() const override { return {}; }
  std::optional<std::uint64_t> finished_bytes;
  std::optional<std::uint64_t> handed_over_after;
  status outcome;
};

class mapped_end : public file_end {
 protected:
  std::unique_ptr<ending_owner> read_mapped(std::optional<std::uint64_t> stated) {
    kernel_->state(stated);
    const auto path = built_in_paths().of(path_kind::mapped).make({.kernel = kernel_});
    auto& session = **driver_->open(0, nullptr);
    lone_link link(*kernel_, session);
    auto* memory = static_cast<std::byte*>(*session.allocate(4 * mib));
    auto owner = std::make_unique<ending_owner>();
    job item;
    item.owner = owner.get();
    item.path = path.get();
    item.file = &file_;
    item.place = link.place();
    item.memory = memory;
    item.length = 4 * mib;
    EXPECT_TRUE(item.run());
    EXPECT_TRUE(session.release(memory).ok());
    return owner;
  }
  std::shared_ptr<device::driver> driver_ = device::make_host_driver();
};

TEST_F(mapped_end, is_a_short_count_where_the_file_does_end) {
  const auto owner = read_mapped(std::nullopt);
  EXPECT_TRUE(owner->outcome.ok()) << owner->outcome.message();
  EXPECT_EQ(owner->finished_bytes, size);
}

TEST_F(mapped_end, is_not_where_only_the_stated_size_ends) {
  for (const std::uint64_t stated : {std::uint64_t{0}, mib, 2 * mib + 5}) {
    const auto owner = read_mapped(stated);
    EXPECT_EQ(owner->handed_over_after, stated);
    EXPECT_FALSE(owner->outcome.ok());
  }
}

}  // namespace
}  // namespace penstock::path
