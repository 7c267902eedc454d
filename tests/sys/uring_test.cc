#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "support/child.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"
#include "sys/dma_buf.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys::uring {
namespace {

namespace pattern = penstock::testing::pattern;
using penstock::testing::deny_system_call;
using penstock::testing::run_in_child;
using penstock::testing::temp_dir;

constexpr std::uint64_t seed = 23;
constexpr std::uint64_t file_bytes = 1 << 20;

class uring_test : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fd = kernel_->open(dir_.file("x"), O_RDWR | O_CREAT, 0644);
    ASSERT_TRUE(fd.ok());
    fd_ = *fd;
    const auto bytes = pattern::make(file_bytes, seed);
    ASSERT_EQ(kernel_->pwrite(fd_, bytes.data(), bytes.size(), 0).value_or(0), file_bytes);
    auto made = kernel_->make_ring(8);
    if (!made) GTEST_SKIP() << made.error().message();
    ring_ = *std::move(made);
  }

  ~uring_test() override {
    ring_.reset();
    if (fd_ >= 0) ::close(fd_);
  }

  // Takes exactly count completions, blocking.
  std::vector<ring_completion> reap(std::size_t count) {
    std::vector<ring_completion> all;
    while (all.size() < count) {
      ring_completion some[3];
      const auto taken = ring_->reap(some, true);
      if (!taken || *taken == 0) {
        ADD_FAILURE() << "only " << all.size() << " completions: " << taken.error().message();
        break;
      }
      all.insert(all.end(), some, some + *taken);
    }
    return all;
  }

  std::int32_t reap_one() {
    const auto done = reap(1);
    return done.empty() ? 0 : done[0].result;
  }

  std::shared_ptr<kernel> kernel_ = make_kernel();
  temp_dir dir_ = temp_dir::on_build_disk();
  int fd_ = -1;
  std::unique_ptr<ring> ring_;
};

TEST_F(uring_test, a_read_brings_its_bytes_and_its_token) {
  std::vector<std::byte> bytes(10000);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 10000, 777, 0xfeedfacecafebeefULL, -1));
  ASSERT_TRUE(ring_->submit().ok());
  const auto done = reap(1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].token, 0xfeedfacecafebeefULL);
  EXPECT_EQ(done[0].result, 10000);
  EXPECT_EQ(pattern::first_difference(bytes, seed, 777), std::nullopt);
}

TEST_F(uring_test, reap_submits_what_was_only_queued) {
  std::vector<std::byte> bytes(100);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 100, 0, 1, -1));
  EXPECT_EQ(reap_one(), 100);
}

TEST_F(uring_test, polling_without_waiting_gets_there_too) {
  std::vector<std::byte> bytes(100);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 100, 0, 1, -1));
  ring_completion done;
  std::size_t count = 0;
  while (count == 0) {
    const auto taken = ring_->reap({&done, 1}, false);
    ASSERT_TRUE(taken.ok());
    count = *taken;
  }
  EXPECT_EQ(done.result, 100);
}

TEST_F(uring_test, a_write_lands_in_the_file) {
  const auto bytes = pattern::make(5000, seed + 1, 300);
  ASSERT_TRUE(ring_->queue_write(fd_, bytes.data(), 5000, 300, 1, -1));
  EXPECT_EQ(reap_one(), 5000);
  std::vector<std::byte> back(5000);
  EXPECT_EQ(kernel_->pread(fd_, back.data(), 5000, 300).value_or(0), 5000U);
  EXPECT_EQ(back, bytes);
}

TEST_F(uring_test, reads_at_the_end_are_short_and_after_it_empty) {
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 4096, file_bytes - 10, 1, -1));
  EXPECT_EQ(reap_one(), 10);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 4096, file_bytes, 1, -1));
  EXPECT_EQ(reap_one(), 0);
}

TEST_F(uring_test, errors_come_as_completions) {
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE(ring_->queue_read(1 << 20, bytes.data(), 4096, 0, 1, -1));
  EXPECT_EQ(reap_one(), -EBADF);
  const auto full = kernel_->open("/dev/full", O_WRONLY, 0);
  ASSERT_TRUE(full.ok());
  ASSERT_TRUE(ring_->queue_write(*full, bytes.data(), 4096, 0, 1, -1));
  EXPECT_EQ(reap_one(), -ENOSPC);
  EXPECT_TRUE(kernel_->close(*full).ok());
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_TRUE(ring_->queue_read(fd_, page, 4096, 0, 1, -1));
  EXPECT_EQ(reap_one(), -EFAULT);
  munmap(page, 4096);
}

TEST_F(uring_test, a_refused_request_does_not_hold_up_those_behind_it) {
  std::vector<std::byte> bytes(300);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 100, 0, 1, -1));
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data() + 100, 100, 100, 2, 77));  // no such slot
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data() + 200, 100, 200, 3, -1));
  ASSERT_TRUE(ring_->submit().ok());
  for (const auto& done : reap(3)) {
    if (done.token == 2) {
      EXPECT_LT(done.result, 0);
    } else {
      EXPECT_EQ(done.result, 100);
    }
  }
}

TEST_F(uring_test, nothing_in_flight_never_blocks) {
  ring_completion done;
  EXPECT_EQ(ring_->reap({&done, 1}, true).value_or(1), 0U);
  EXPECT_EQ(ring_->reap({&done, 1}, false).value_or(1), 0U);
  EXPECT_TRUE(ring_->submit().ok());
  EXPECT_EQ(ring_->reap({}, true).value_or(1), 0U);
}

TEST_F(uring_test, a_full_submission_queue_says_so_and_accepts_more_after_submit) {
  std::vector<std::byte> bytes(64);
  std::size_t queued = 0;
  while (ring_->queue_read(fd_, bytes.data(), 1, 0, queued, -1)) {
    ++queued;
    ASSERT_LE(queued, 64U);
  }
  EXPECT_EQ(queued, 8U);
  EXPECT_FALSE(ring_->queue_write(fd_, bytes.data(), 1, 0, 99, -1));
  ASSERT_TRUE(ring_->submit().ok());
  EXPECT_TRUE(ring_->queue_read(fd_, bytes.data(), 1, 0, queued++, -1));
  EXPECT_EQ(reap(queued).size(), queued);
}

TEST_F(uring_test, more_in_flight_than_the_completion_queue_holds_lose_nothing) {
  constexpr std::size_t requests = 500;  // the ring has 8 entries, its completion queue 16
  constexpr std::size_t part = 2003;
  std::vector<std::byte> bytes(requests * part);
  for (std::size_t i = 0; i < requests; ++i) {
    while (!ring_->queue_read(fd_, &bytes[i * part], part, i * part, i, -1)) ASSERT_TRUE(ring_->submit().ok());
  }
  std::set<std::uint64_t> tokens;
  for (const auto& done : reap(requests)) {
    EXPECT_EQ(done.result, static_cast<std::int32_t>(part));
    tokens.insert(done.token);
  }
  EXPECT_EQ(tokens.size(), requests);
  EXPECT_EQ(pattern::first_difference(bytes, seed, 0), std::nullopt);
}

TEST_F(uring_test, registered_buffers_carry_reads_and_writes) {
  constexpr std::size_t length = 256 << 10;
  const auto memory = kernel_->map_memory(length, -1);
  ASSERT_TRUE(memory.ok());
  auto* base = static_cast<std::byte*>(*memory);
  for (const unsigned slot : {0U, 15U, 0U}) {  // a slot may be given another buffer
    const status registered = ring_->register_buffer(slot, base, length);
    if (registered.code() == errc::out_of_memory || registered.code() == errc::unsupported) GTEST_SKIP() << registered.message();
    ASSERT_TRUE(registered.ok()) << registered.message();
  }
  ASSERT_TRUE(ring_->queue_read(fd_, base + 4096, 8192, 5000, 1, 15));
  EXPECT_EQ(reap_one(), 8192);
  EXPECT_EQ(pattern::first_difference({base + 4096, 8192}, seed, 5000), std::nullopt);
  ASSERT_TRUE(ring_->queue_write(fd_, base + 4096, 8192, 0, 1, 0));
  EXPECT_EQ(reap_one(), 8192);
  std::vector<std::byte> back(8192);
  EXPECT_EQ(kernel_->pread(fd_, back.data(), 8192, 0).value_or(0), 8192U);
  EXPECT_EQ(pattern::first_difference(back, seed, 5000), std::nullopt);
  ASSERT_TRUE(ring_->queue_read(fd_, base + length - 100, 200, 0, 1, 15));  // reaches past the buffer
  EXPECT_EQ(reap_one(), -EFAULT);
  ring_.reset();
  EXPECT_TRUE(kernel_->unmap(base, length).ok());
}

TEST_F(uring_test, a_wrong_slot_or_buffer_is_an_error) {
  std::vector<std::byte> bytes(4096);
  EXPECT_EQ(ring_->register_buffer(16, bytes.data(), bytes.size()).code(), errc::invalid_argument);
  const status unmapped = ring_->register_buffer(0, reinterpret_cast<void*>(4096), 4096);
  EXPECT_TRUE(unmapped.code() == errc::bad_memory || unmapped.code() == errc::unsupported) << unmapped.message();
}

// Kernels that know dma-bufs (Linux 7.4) refuse this descriptor, which is none; older ones refuse that they are described at all.
TEST_F(uring_test, a_dma_buf_that_is_none_is_refused_in_words_and_the_ring_works_on) {
  const status refused = ring_->register_dma_buf(0, fd_, fd_);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("register dma-buf"), std::string::npos) << refused.message();
  EXPECT_EQ(ring_->register_dma_buf(16, fd_, fd_).code(), errc::invalid_argument);
  const status known = dma_bufs_known(*kernel_);
  EXPECT_TRUE(known.ok() || known.message().find("7.4") != std::string::npos) << known.message();
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE(ring_->queue_read(fd_, bytes.data(), 4096, 0, 1, -1));
  EXPECT_EQ(reap_one(), 4096);
}

// In a child without privileges, which are what lifts the limit.
TEST_F(uring_test, registering_more_than_may_be_locked_is_refused_and_reads_go_on) {
  const int outcome = run_in_child([&] {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 2;
    const rlimit limit{1 << 20, 1 << 20};  // rings just destroyed may still count
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 2;
    auto made = kernel_->make_ring(8);
    if (!made) return 2;
    constexpr std::size_t length = 8 << 20;
    const auto memory = kernel_->map_memory(length, -1);
    if (!memory) return 3;
    const status refused = (*made)->register_buffer(0, *memory, length);
    if (refused.code() != errc::out_of_memory && refused.code() != errc::unsupported) return 4;
    if (!(*made)->queue_read(fd_, *memory, 4096, 0, 1, -1)) return 5;
    ring_completion done;
    if ((*made)->reap({&done, 1}, true).value_or(0) != 1 || done.result != 4096) return 6;
    return pattern::first_difference({static_cast<std::byte*>(*memory), 4096}, seed, 0) ? 7 : 0;
  });
  if (outcome == 2) GTEST_SKIP() << "privileges cannot be dropped here, or rings are refused without them";
  EXPECT_EQ(outcome, 0);
}

TEST_F(uring_test, a_ring_denied_by_a_container_profile_says_so) {
  for (const auto& [refusal, code] : {std::pair{EPERM, errc::permission_denied}, std::pair{ENOSYS, errc::unsupported}}) {
    const int outcome = run_in_child([&, refusal = refusal, code = code] {
      if (!deny_system_call(SYS_io_uring_setup, refusal)) return 2;
      return kernel_->make_ring(8).error().code() == code ? 0 : 1;
    });
    if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
    EXPECT_EQ(outcome, 0) << refusal;
  }
}

TEST_F(uring_test, a_ring_that_can_be_made_but_not_used_is_denied) {
  for (const auto& [refusal, code] : {std::pair{EPERM, errc::permission_denied}, std::pair{ENOSYS, errc::unsupported}}) {
    const int outcome = run_in_child([&, refusal = refusal, code = code] {
      if (!deny_system_call(SYS_io_uring_enter, refusal)) return 2;
      return kernel_->make_ring(8).error().code() == code ? 0 : 1;
    });
    if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
    EXPECT_EQ(outcome, 0) << refusal;
  }
}

TEST_F(uring_test, requests_that_cannot_be_submitted_complete_with_the_reason) {
  for (const int refusal : {EPERM, EAGAIN, EBUSY}) {
    const int outcome = run_in_child([&] {
      auto made = kernel_->make_ring(8);
      std::vector<std::byte> bytes(64);
      if (!made || !deny_system_call(SYS_io_uring_enter, refusal)) return 2;
      ring& broken = **made;
      if (!broken.queue_read(fd_, bytes.data(), 64, 0, 5, -1) || !broken.queue_read(fd_, bytes.data(), 64, 0, 6, -1)) return 3;
      if (broken.submit().native() != refusal) return 4;
      ring_completion done[4];
      if (broken.reap(done, true).value_or(0) != 2) return 5;
      if (done[0].token != 5 || done[0].result != -refusal || done[1].token != 6 || done[1].result != -refusal) return 6;
      if (!broken.queue_read(fd_, bytes.data(), 64, 0, 7, -1)) return 7;
      if (broken.reap(done, true).value_or(0) != 1 || done[0].token != 7 || done[0].result != -refusal) return 8;
      return broken.reap(done, true).value_or(1) == 0 ? 0 : 9;
    });
    if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
    EXPECT_EQ(outcome, 0) << refusal;
  }
}

TEST_F(uring_test, a_ring_of_no_entries_is_an_invalid_argument) { EXPECT_EQ(kernel_->make_ring(0).error().code(), errc::invalid_argument); }

TEST_F(uring_test, destroying_a_ring_with_requests_under_way_is_a_defect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  char byte = 0;
  EXPECT_DEATH(
      {
        (void)ring_->queue_read(fd_, &byte, 1, 0, 1, -1);
        ring_.reset();
      },
      "reaped");
}

}  // namespace
}  // namespace penstock::sys::uring
