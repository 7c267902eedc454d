#include "staging/disk_lanes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device_fixture.hpp"
#include "staging/worker.hpp"
#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

#if defined(__SANITIZE_ADDRESS__)
// A ring that failed is leaked on purpose: the kernel may still use it.
extern "C" [[gnu::visibility("default"), gnu::used]] const char* __lsan_default_suppressions() {
  return "leak:faulty_kernel::make_ring\nleak:faulty_ring::\n";
}
#endif

namespace penstock::staging {
namespace {

namespace pattern = testing::pattern;

constexpr std::uint64_t file_seed = 11;
constexpr std::uint32_t piece_bytes = 64 * 1024;

// What one test does to one slab: a work that takes a slab on a disk lane and begins a task of pieces.
struct slab_read final : work {
  bool run() override {
    ++offered;
    auto taken = pool->try_take(large_slab_bytes, *session, slab_user::disk);
    if (!taken || !*taken) return false;
    task.memory = *taken;
    task.pool = pool;
    std::byte* at = taken->data;
    for (auto& piece : task.pieces) {
      piece.memory = at;
      at += piece.length;
    }
    task.context = this;
    task.done = [](ring_task& ended) {
      auto& self = *static_cast<slab_read*>(ended.context);
      ++self.ended;
      if (ended.memory) {
        for (const auto& piece : ended.pieces) self.content.insert(self.content.end(), piece.memory, piece.memory + piece.moved);
        ended.pool->give_back(ended.memory);
      }
      self.all->count_down();
    };
    disk_lanes::begin(task);
    return true;
  }

  slab_pool* pool = nullptr;
  device::session* session = nullptr;
  std::latch* all = nullptr;
  ring_task task;
  int offered = 0;
  int ended = 0;
  std::vector<std::byte> content;
};

class disk_lanes_test : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = testing::value_of(driver_->open(0, nullptr));
    pool_ = std::make_unique<slab_pool>(*kernel_, budget_, 24 * large_slab_bytes, 24 * large_slab_bytes);
    lanes_ = std::make_unique<disk_lanes>(1, *kernel_, copies_);
    if (auto rings = lanes_->available(); !rings.ok()) GTEST_SKIP() << "no io_uring: " << rings.message();
  }

  void TearDown() override {
    lanes_.reset();
    for (const int fd : {direct_fd_, cached_fd_}) {
      if (fd >= 0) PENSTOCK_EXPECT_OK(kernel_->close(fd));
    }
  }

  // A file of pattern bytes, open with O_DIRECT. False: the file system here has no direct I/O, and the test is skipped.
  bool make_file(std::size_t size) {
    const auto name = directory_.file("data");
    const auto content = pattern::make(size, file_seed);
    testing::store_file(name, content);
    cached_fd_ = testing::value_of(kernel_->open(name, O_RDWR, 0));
    const auto direct = kernel_->open(name, O_RDWR | O_DIRECT, 0);
    direct_fd_ = direct.value_or(-1);
    return direct.ok();
  }

  slab_read& add_read(std::uint64_t offset, std::uint32_t pieces, std::latch& all) {
    auto& made = reads_.emplace_back();
    made.pool = pool_.get();
    made.session = session_;
    made.all = &all;
    for (std::uint32_t i = 0; i < pieces; ++i)
      made.task.pieces.push_back({.fd = direct_fd_, .length = piece_bytes, .file_offset = offset + std::uint64_t{i} * piece_bytes});
    return made;
  }

  void push_all() {
    for (auto& each : reads_) lanes_->push(list_, each, each, 1);
  }

  void expect_content(const slab_read& read, std::uint64_t offset, std::size_t bytes) {
    EXPECT_EQ(read.ended, 1);
    EXPECT_EQ(read.content.size(), bytes);
    EXPECT_EQ(pattern::first_difference(read.content, file_seed, offset), std::nullopt);
    for (const auto& piece : read.task.pieces) EXPECT_EQ(piece.error, 0);
  }

  testing::temp_dir directory_ = testing::temp_dir::on_build_disk();
  std::shared_ptr<testing::faulty_kernel> kernel_ = std::make_shared<testing::faulty_kernel>();
  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
  pinned_budget budget_{std::size_t{256} << 20};
  std::unique_ptr<slab_pool> pool_;
  feeders copies_;
  std::unique_ptr<disk_lanes> lanes_;
  work_list list_;
  std::deque<slab_read> reads_;
  int cached_fd_ = -1;
  int direct_fd_ = -1;
};

#define PENSTOCK_FILE_OR_SKIP(size) \
  if (!make_file(size)) GTEST_SKIP() << "the build's file system has no direct I/O"

TEST_F(disk_lanes_test, reads_more_pieces_than_are_in_flight_at_once) {
  constexpr std::uint32_t slabs = 10;
  constexpr std::uint32_t pieces = 60;  // 600 in all; 128 are in flight
  PENSTOCK_FILE_OR_SKIP(slabs * pieces * piece_bytes);
  std::latch all(slabs);
  for (std::uint32_t i = 0; i < slabs; ++i) add_read(std::uint64_t{i} * pieces * piece_bytes, pieces, all);
  push_all();
  all.wait();
  for (std::uint32_t i = 0; i < slabs; ++i) expect_content(reads_[i], std::uint64_t{i} * pieces * piece_bytes, pieces * piece_bytes);
  EXPECT_EQ(pool_->slabs_out(), 0U);
}

TEST_F(disk_lanes_test, completions_may_come_in_any_order) {
  PENSTOCK_FILE_OR_SKIP(40 * piece_bytes);
  kernel_->reorder_completions(5);
  std::latch all(4);
  for (std::uint32_t i = 0; i < 4; ++i) add_read(i * 10 * piece_bytes, 10, all);
  push_all();
  all.wait();
  for (std::uint32_t i = 0; i < 4; ++i) expect_content(reads_[i], i * 10 * piece_bytes, 10 * piece_bytes);
}

TEST_F(disk_lanes_test, a_read_across_the_end_is_short_and_behind_the_end_empty) {
  for (const std::uint32_t beyond : {0U, 100U, 4096U, 8192U + 512U}) {
    SCOPED_TRACE(beyond);
    PENSTOCK_FILE_OR_SKIP(piece_bytes + beyond);
    reads_.clear();
    std::latch all(1);
    auto& read = add_read(0, 3, all);
    push_all();
    all.wait();
    expect_content(read, 0, piece_bytes + beyond);
    EXPECT_EQ(read.task.pieces[1].moved, beyond);
    EXPECT_EQ(read.task.pieces[2].moved, 0U);
    PENSTOCK_EXPECT_OK(kernel_->close(std::exchange(direct_fd_, -1)));
    PENSTOCK_EXPECT_OK(kernel_->close(std::exchange(cached_fd_, -1)));
  }
}

TEST_F(disk_lanes_test, a_short_read_before_the_end_goes_on) {
  PENSTOCK_FILE_OR_SKIP(4 * piece_bytes);
  kernel_->shorten({.call = "ring.read", .nth = 2, .bytes = 4096});
  kernel_->shorten({.call = "ring.read", .nth = 5, .bytes = 8192});  // the second half of the former
  std::latch all(1);
  auto& read = add_read(0, 4, all);
  push_all();
  all.wait();
  expect_content(read, 0, 4 * piece_bytes);
  EXPECT_EQ(kernel_->count("ring.read"), 6U);
}

TEST_F(disk_lanes_test, an_interrupted_piece_is_tried_again) {
  PENSTOCK_FILE_OR_SKIP(4 * piece_bytes);
  kernel_->fail({.call = "ring.read", .nth = 1, .error = EAGAIN});
  kernel_->fail({.call = "ring.read", .nth = 3, .error = EINTR});
  std::latch all(1);
  auto& read = add_read(0, 4, all);
  push_all();
  all.wait();
  expect_content(read, 0, 4 * piece_bytes);
  EXPECT_EQ(kernel_->injected(), 2U);
}

TEST_F(disk_lanes_test, a_piece_that_is_interrupted_for_ever_fails) {
  PENSTOCK_FILE_OR_SKIP(piece_bytes);
  kernel_->fail({.call = "ring.read", .nth = 1, .error = EAGAIN, .lasting = true});
  std::latch all(1);
  auto& read = add_read(0, 1, all);
  push_all();
  all.wait();
  EXPECT_EQ(read.ended, 1);
  EXPECT_EQ(read.task.pieces[0].error, EAGAIN);
  EXPECT_EQ(read.task.pieces[0].moved, 0U);
}

TEST_F(disk_lanes_test, an_error_of_one_piece_is_its_own) {
  PENSTOCK_FILE_OR_SKIP(8 * piece_bytes);
  kernel_->fail({.call = "ring.read", .nth = 3, .error = EIO});
  std::latch all(2);
  auto& first = add_read(0, 4, all);
  auto& second = add_read(4 * piece_bytes, 4, all);
  push_all();
  all.wait();
  EXPECT_EQ(first.ended, 1);
  const auto failed =
      std::count_if(first.task.pieces.begin(), first.task.pieces.end(), [](const auto& piece) { return piece.error == EIO; });
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(first.content.size(), 3 * piece_bytes);
  expect_content(second, 4 * piece_bytes, 4 * piece_bytes);
}

TEST_F(disk_lanes_test, a_refused_registration_of_slabs_changes_nothing_else) {
  PENSTOCK_FILE_OR_SKIP(4 * piece_bytes);
  kernel_->fail({.call = "ring.register", .nth = 1, .error = ENOMEM, .lasting = true});
  std::latch all(1);
  auto& read = add_read(0, 4, all);
  push_all();
  all.wait();
  expect_content(read, 0, 4 * piece_bytes);
  EXPECT_GE(kernel_->injected(), 1U);
}

// A ring would go on reading into the pages that it has registered, which are no longer those of the slab.
TEST_F(disk_lanes_test, reads_are_right_after_their_slabs_were_trimmed) {
  PENSTOCK_FILE_OR_SKIP(8 * piece_bytes);
  for (std::uint32_t round = 0; round < 4; ++round) {
    std::latch all(1);
    const std::uint64_t offset = round * piece_bytes;
    auto& read = add_read(offset, 4, all);
    lanes_->push(list_, read, read, 1);
    all.wait();
    expect_content(read, offset, 4 * piece_bytes);
    EXPECT_GT(pool_->trim(), 0U);
    if (round % 2 == 0) continue;  // the next read finds what is still registered
    const auto before = kernel_->count("ring.register");
    lanes_->release_trimmed();
    while (kernel_->count("ring.register") == before) std::this_thread::yield();
  }
}

TEST_F(disk_lanes_test, a_ring_that_keeps_what_was_trimmed_changes_nothing_else) {
  PENSTOCK_FILE_OR_SKIP(4 * piece_bytes);
  kernel_->fail({.call = "ring.register", .nth = 2, .error = ENOMEM, .lasting = true});
  for (int round = 0; round < 2; ++round) {
    std::latch all(1);
    auto& read = add_read(0, 4, all);
    lanes_->push(list_, read, read, 1);
    all.wait();
    expect_content(read, 0, 4 * piece_bytes);
    EXPECT_GT(pool_->trim(), 0U);
    lanes_->release_trimmed();
  }
  while (kernel_->injected() == 0) std::this_thread::yield();
}

TEST_F(disk_lanes_test, ready_tasks_write) {
  PENSTOCK_FILE_OR_SKIP(1);
  constexpr std::uint32_t pieces = 6;
  struct slab_write {
    ring_task task;
    std::latch* all;
    int ended = 0;
  };
  std::latch all(3);
  std::deque<slab_write> writes;
  kernel_->shorten({.call = "ring.write", .nth = 4, .bytes = 4096});
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto& made = writes.emplace_back();
    made.all = &all;
    made.task.is_write = true;
    made.task.memory = testing::value_of(pool_->try_take(large_slab_bytes, *session_, slab_user::cpu));
    made.task.pool = pool_.get();
    pattern::fill({made.task.memory.data, pieces * piece_bytes}, 99, i * pieces * piece_bytes);
    for (std::uint64_t j = 0; j < pieces; ++j) {
      made.task.pieces.push_back({.fd = direct_fd_,
                                  .memory = made.task.memory.data + j * piece_bytes,
                                  .length = piece_bytes,
                                  .file_offset = (i * pieces + j) * piece_bytes});
    }
    made.task.context = &made;
    made.task.done = [](ring_task& ended) {
      auto& self = *static_cast<slab_write*>(ended.context);
      ++self.ended;
      ended.pool->give_back(ended.memory);
      self.all->count_down();
    };
    lanes_->push_ready(made.task);
  }
  all.wait();
  for (const auto& each : writes) {
    EXPECT_EQ(each.ended, 1);
    for (const auto& piece : each.task.pieces) {
      EXPECT_EQ(piece.error, 0);
      EXPECT_EQ(piece.moved, piece_bytes);
    }
  }
  std::vector<std::byte> written(3 * pieces * piece_bytes);
  EXPECT_EQ(testing::value_of(kernel_->pread(cached_fd_, written.data(), written.size(), 0)), written.size());
  EXPECT_EQ(pattern::first_difference(written, 99, 0), std::nullopt);
}

TEST_F(disk_lanes_test, a_work_without_a_slab_is_offered_again) {
  PENSTOCK_FILE_OR_SKIP(2 * piece_bytes);
  slab_pool tight(*kernel_, budget_, large_slab_bytes, large_slab_bytes);
  const auto taken = testing::value_of(tight.try_take(large_slab_bytes, *session_, slab_user::disk));
  std::latch all(2);
  for (std::uint32_t i = 0; i < 2; ++i) add_read(i * piece_bytes, 1, all).pool = &tight;
  // The slab comes back at the third offer, made on the lane itself.
  struct returning final : work {
    bool run() override {
      if (++offered < 3) return false;
      pool->give_back(held);
      return true;
    }
    slab_pool* pool = nullptr;
    slab held;
    int offered = 0;
  } giver;
  giver.pool = &tight;
  giver.held = taken;
  lanes_->push(list_, giver, giver, 1);
  push_all();
  all.wait();
  EXPECT_EQ(giver.offered, 3);
  for (std::uint32_t i = 0; i < 2; ++i) expect_content(reads_[i], i * piece_bytes, piece_bytes);
  lanes_.reset();  // before the pool of this test
}

TEST_F(disk_lanes_test, ending_runs_what_is_queued) {
  PENSTOCK_FILE_OR_SKIP(40 * piece_bytes);
  std::latch all(20);
  for (std::uint32_t i = 0; i < 20; ++i) add_read(i * 2 * piece_bytes, 2, all);
  push_all();
  lanes_.reset();
  EXPECT_TRUE(all.try_wait());
  for (std::uint32_t i = 0; i < 20; ++i) expect_content(reads_[i], i * 2 * piece_bytes, 2 * piece_bytes);
}

TEST_F(disk_lanes_test, without_rings_it_says_why_and_starts_nothing) {
  kernel_->fail({.call = "make_ring", .nth = 1, .error = EPERM, .lasting = true});
  disk_lanes none(2, *kernel_, copies_);
  const auto problem = none.available();
  EXPECT_EQ(problem.code(), errc::permission_denied);
  EXPECT_EQ(problem.native(), EPERM);
  EXPECT_EQ(none.available().code(), errc::permission_denied) << "and says so again";
}

TEST_F(disk_lanes_test, one_ring_of_two_is_enough) {
  PENSTOCK_FILE_OR_SKIP(4 * piece_bytes);
  kernel_->fail({.call = "make_ring", .nth = 2, .error = ENOMEM});
  lanes_ = std::make_unique<disk_lanes>(2, *kernel_, copies_);
  PENSTOCK_EXPECT_OK(lanes_->available());
  std::latch all(1);
  auto& read = add_read(0, 4, all);
  push_all();
  all.wait();
  expect_content(read, 0, 4 * piece_bytes);
}

TEST_F(disk_lanes_test, a_ring_that_stops_answering_fails_its_pieces_and_loses_its_slabs) {
  PENSTOCK_FILE_OR_SKIP(40 * piece_bytes);
  kernel_->fail({.call = "ring.reap", .nth = 1, .error = EBADF, .lasting = true});
  std::latch all(5);
  for (std::uint32_t i = 0; i < 5; ++i) add_read(i * 8 * piece_bytes, 8, all);
  push_all();
  all.wait();
  std::size_t lost = 0;
  for (const auto& read : reads_) {
    EXPECT_EQ(read.ended, 1);
    for (const auto& piece : read.task.pieces) EXPECT_EQ(piece.error, ECANCELED);
    lost += read.task.memory ? 0 : 1;
  }
  EXPECT_GE(lost, 1U) << "what the kernel may still write to is abandoned";
  EXPECT_EQ(pool_->slabs_out(), 0U);
  EXPECT_EQ(lanes_->available().code(), errc::unsupported);

  // Works that come all the same end at once, with their slabs.
  reads_.clear();
  std::latch later(1);
  auto& late = add_read(0, 8, later);
  push_all();
  later.wait();
  EXPECT_EQ(late.ended, 1);
  for (const auto& piece : late.task.pieces) EXPECT_EQ(piece.error, ECANCELED);
  EXPECT_TRUE(late.task.memory);
}

}  // namespace
}  // namespace penstock::staging
