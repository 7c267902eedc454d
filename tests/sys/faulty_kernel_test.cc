// Tests the test kernel: a fault that has no effect would make the tests that use it worthless.
#include "support/faulty_kernel.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <vector>

#include "support/pattern.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t seed = 5;
constexpr std::size_t file_bytes = 64 << 10;

class faulty_kernel_test : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fd = kernel_.open(dir_.file("x"), O_RDWR | O_CREAT, 0644);
    ASSERT_TRUE(fd.ok());
    fd_ = *fd;
    const auto bytes = pattern::make(file_bytes, seed);
    ASSERT_EQ(kernel_.pwrite(fd_, bytes.data(), bytes.size(), 0).value_or(0), file_bytes);
  }

  void TearDown() override {
    kernel_.disarm();
    EXPECT_TRUE(fd_ < 0 || kernel_.close(fd_).ok());
    EXPECT_EQ(kernel_.open_descriptors(), 0);
    EXPECT_EQ(kernel_.mapped_bytes(), 0);
    EXPECT_EQ(kernel_.live_rings(), 0);
  }

  result<std::size_t> read(std::size_t length) {
    bytes_.assign(length, std::byte{0});
    return kernel_.pread(fd_, bytes_.data(), length, 0);
  }

  faulty_kernel kernel_;
  temp_dir dir_;
  int fd_ = -1;
  std::vector<std::byte> bytes_;
};

TEST_F(faulty_kernel_test, fails_the_nth_call_of_a_kind_once) {
  kernel_.fail({.call = "pread", .nth = 2, .error = EIO});
  EXPECT_TRUE(read(10).ok());
  EXPECT_TRUE(kernel_.file_size(fd_).ok());
  const auto failed = read(10);
  EXPECT_EQ(failed.error().code(), errc::io);
  EXPECT_EQ(failed.error().native(), EIO);
  EXPECT_TRUE(read(10).ok());
  EXPECT_EQ(kernel_.count("pread"), 3U);
  EXPECT_EQ(kernel_.injected(), 1U);
}

TEST_F(faulty_kernel_test, fails_from_the_nth_call_on_until_disarmed) {
  kernel_.fail({.call = "pread", .nth = 2, .error = ENOMEM, .lasting = true});
  EXPECT_TRUE(read(10).ok());
  EXPECT_EQ(read(10).error().code(), errc::out_of_memory);
  EXPECT_EQ(read(10).error().code(), errc::out_of_memory);
  kernel_.disarm();
  EXPECT_TRUE(read(10).ok());
}

TEST_F(faulty_kernel_test, fails_the_nth_call_whatever_it_is) {
  const std::uint64_t before = kernel_.count();
  kernel_.fail({.nth = 3, .error = EIO});
  EXPECT_TRUE(read(10).ok());
  EXPECT_TRUE(kernel_.path_exists("/"));  // cannot fail, so does not count
  EXPECT_TRUE(kernel_.file_size(fd_).ok());
  EXPECT_FALSE(kernel_.describe(fd_).ok());
  EXPECT_EQ(kernel_.count(), before + 3);
  EXPECT_EQ(kernel_.history().back(), "describe");
  EXPECT_EQ(kernel_.count("path_exists"), 1U);
}

TEST_F(faulty_kernel_test, short_reads_promise_no_byte_beyond_their_count) {
  kernel_.shorten({.call = "pread", .nth = 1});
  kernel_.shorten({.call = "pread", .nth = 2, .bytes = 1});
  kernel_.shorten({.call = "pread", .nth = 3, .bytes = 0});
  EXPECT_EQ(read(4096).value_or(0), 2048U);
  EXPECT_EQ(pattern::first_difference(bytes_, seed, 0), 2048U);
  EXPECT_EQ(read(4096).value_or(0), 1U);
  EXPECT_EQ(read(4096).value_or(1), 0U);
  EXPECT_EQ(read(4096).value_or(0), 4096U);
}

TEST_F(faulty_kernel_test, short_writes_write_no_more_than_their_count) {
  const auto other = pattern::make(4096, seed + 1);
  kernel_.shorten({.call = "pwrite"});
  EXPECT_EQ(kernel_.pwrite(fd_, other.data(), 4096, 0).value_or(0), 2048U);
  EXPECT_TRUE(read(4096).ok());
  EXPECT_EQ(pattern::first_difference(bytes_, seed + 1, 0), 2048U);
  EXPECT_EQ(pattern::first_difference({&bytes_[2048], 2048}, seed, 2048), std::nullopt);
}

TEST_F(faulty_kernel_test, a_refused_write_writes_nothing) {
  const auto other = pattern::make(4096, seed + 1);
  kernel_.fail({.call = "pwrite", .error = ENOSPC});
  EXPECT_EQ(kernel_.pwrite(fd_, other.data(), 4096, 0).error().code(), errc::no_space);
  EXPECT_TRUE(read(4096).ok());
  EXPECT_EQ(pattern::first_difference(bytes_, seed, 0), std::nullopt);
}

TEST_F(faulty_kernel_test, a_hook_may_change_the_world_or_fail_the_call) {
  const auto real = sys::make_kernel();
  kernel_.set_hook([&](std::string_view call, std::uint64_t number) -> std::optional<int> {
    if (call != "pread") return std::nullopt;
    EXPECT_TRUE(number != 1 || real->truncate(fd_, 100).ok());
    return number == 2 ? std::optional<int>(EACCES) : std::nullopt;
  });
  EXPECT_EQ(read(4096).value_or(0), 100U);
  EXPECT_EQ(read(4096).error().code(), errc::permission_denied);
  EXPECT_EQ(read(4096).value_or(0), 100U);
}

TEST_F(faulty_kernel_test, a_failing_close_still_closes) {
  kernel_.fail({.call = "close", .error = EIO});
  EXPECT_EQ(kernel_.close(fd_).native(), EIO);
  EXPECT_EQ(kernel_.open_descriptors(), 0);
  EXPECT_EQ(fcntl(fd_, F_GETFD), -1);
  EXPECT_EQ(kernel_.stray_closes(), 0);
  EXPECT_FALSE(kernel_.close(fd_).ok());
  EXPECT_EQ(kernel_.stray_closes(), 1);
  fd_ = -1;
}

TEST_F(faulty_kernel_test, leaks_are_counted) {
  const auto anew = kernel_.reopen(fd_, O_RDONLY);
  ASSERT_TRUE(anew.ok());
  EXPECT_EQ(kernel_.open_descriptors(), 2);
  const auto memory = kernel_.map_memory(10000, -1);
  const auto mapping = kernel_.map_file(fd_, 0, 4096);
  ASSERT_TRUE(memory.ok() && mapping.ok());
  EXPECT_EQ(kernel_.mapped_bytes(), 14096);
  kernel_.fail({.call = "unmap"});
  EXPECT_FALSE(kernel_.unmap(*mapping, 4096).ok());
  EXPECT_TRUE(kernel_.unmap(*memory, 10000).ok());
  EXPECT_TRUE(kernel_.close(*anew).ok());
}

class faulty_ring_test : public faulty_kernel_test {
 protected:
  void SetUp() override {
    faulty_kernel_test::SetUp();
    auto made = kernel_.make_ring(4);
    if (!made) GTEST_SKIP() << made.error().message();
    ring_ = *std::move(made);
    EXPECT_EQ(kernel_.live_rings(), 1);
    bytes_.assign(file_bytes, std::byte{0});
  }
  void TearDown() override {
    ring_.reset();
    faulty_kernel_test::TearDown();
  }

  sys::ring_completion reap_one() {
    sys::ring_completion done;
    EXPECT_EQ(ring_->reap({&done, 1}, true).value_or(0), 1U);
    return done;
  }

  std::unique_ptr<sys::ring> ring_;
};

TEST_F(faulty_ring_test, completions_become_errors_and_nothing_moves) {
  kernel_.fail({.call = "ring.read", .error = EIO});
  kernel_.fail({.call = "ring.write", .error = ENOSPC});
  ASSERT_TRUE(ring_->queue_read(fd_, bytes_.data(), 4096, 0, 42, -1));
  auto done = reap_one();
  EXPECT_EQ(done.token, 42U);
  EXPECT_EQ(done.result, -EIO);
  EXPECT_EQ(bytes_, std::vector<std::byte>(file_bytes));
  ASSERT_TRUE(ring_->queue_write(fd_, bytes_.data(), 4096, 0, 43, -1));
  EXPECT_EQ(reap_one().result, -ENOSPC);
  EXPECT_TRUE(read(4096).ok());
  EXPECT_EQ(pattern::first_difference(bytes_, seed, 0), std::nullopt);
}

TEST_F(faulty_ring_test, completions_become_short) {
  kernel_.shorten({.call = "ring.read"});
  kernel_.shorten({.call = "ring.write", .bytes = 1});
  ASSERT_TRUE(ring_->queue_read(fd_, bytes_.data(), 4096, 0, 1, -1));
  EXPECT_EQ(reap_one().result, 2048);
  EXPECT_EQ(pattern::first_difference({bytes_.data(), 4096}, seed, 0), 2048U);
  const auto other = pattern::make(4096, seed + 1);
  ASSERT_TRUE(ring_->queue_write(fd_, other.data(), 4096, 0, 1, -1));
  EXPECT_EQ(reap_one().result, 1);
  EXPECT_TRUE(read(4096).ok());
  EXPECT_EQ(pattern::first_difference({&bytes_[1], 4095}, seed, 1), std::nullopt);
}

TEST_F(faulty_ring_test, a_full_queue_does_not_swallow_the_fault) {
  kernel_.fail({.call = "ring.read", .nth = 5, .error = EIO});
  std::size_t queued = 0;
  for (; queued < 4; ++queued) ASSERT_TRUE(ring_->queue_read(fd_, bytes_.data(), 1, 0, queued, -1));
  EXPECT_FALSE(ring_->queue_read(fd_, bytes_.data(), 1, 0, 4, -1));
  ASSERT_TRUE(ring_->submit().ok());
  ASSERT_TRUE(ring_->queue_read(fd_, bytes_.data(), 1, 0, 4, -1));
  for (int i = 0; i < 5; ++i) {
    const auto done = reap_one();
    EXPECT_EQ(done.result, done.token == 4 ? -EIO : 1);
  }
}

TEST_F(faulty_ring_test, failed_submits_and_reaps_lose_nothing) {
  kernel_.fail({.call = "ring.submit", .error = EBUSY});
  kernel_.fail({.call = "ring.reap", .error = EINTR});
  kernel_.fail({.call = "ring.register", .error = ENOMEM});
  EXPECT_EQ(ring_->register_buffer(0, bytes_.data(), 4096).code(), errc::out_of_memory);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes_.data(), 4096, 0, 9, -1));
  EXPECT_EQ(ring_->submit().native(), EBUSY);
  sys::ring_completion done;
  EXPECT_EQ(ring_->reap({&done, 1}, true).error().native(), EINTR);
  done = reap_one();
  EXPECT_EQ(done.token, 9U);
  EXPECT_EQ(done.result, 4096);
}

TEST_F(faulty_ring_test, completions_can_be_reordered_without_loss) {
  kernel_.reorder_completions(1);
  std::set<std::uint64_t> tokens;
  bool reordered = false;
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(ring_->queue_read(fd_, &bytes_[i], 1, i, i, -1));
    std::uint64_t expected = 0;
    for (std::size_t taken = 0; taken < 4;) {
      sys::ring_completion done[4];
      const auto count = ring_->reap(done, true);
      ASSERT_TRUE(count.ok());
      for (std::size_t i = 0; i < *count; ++i) {
        reordered |= done[i].token != expected++;
        tokens.insert(done[i].token);
      }
      taken += *count;
    }
  }
  EXPECT_EQ(tokens.size(), 4U);
  EXPECT_TRUE(reordered);
}

TEST_F(faulty_ring_test, a_ring_can_be_refused) {
  kernel_.fail({.call = "make_ring", .error = EPERM});
  EXPECT_EQ(kernel_.make_ring(4).error().code(), errc::permission_denied);
}

TEST(pattern, depends_on_seed_and_absolute_offset_only) {
  const auto whole = pattern::make(10000, 3, 0);
  for (const std::size_t offset : {0, 1, 7, 8, 4095, 9999}) {
    const auto part = pattern::make(10000 - offset, 3, offset);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(offset))) << offset;
  }
  EXPECT_NE(pattern::make(64, 3), pattern::make(64, 4));
}

TEST(pattern, first_difference_finds_the_one_changed_byte) {
  for (const std::size_t at : {0, 1, 4095, 4096, 9999}) {
    auto bytes = pattern::make(10000, 3, 500);
    EXPECT_EQ(pattern::first_difference(bytes, 3, 500), std::nullopt);
    bytes[at] ^= std::byte{1};
    EXPECT_EQ(pattern::first_difference(bytes, 3, 500), 500 + at);
  }
}

}  // namespace
}  // namespace penstock::testing
