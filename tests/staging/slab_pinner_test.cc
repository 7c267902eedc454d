#include "staging/slab_pinner.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::staging::slab_pinner_tests {
namespace {

constexpr std::size_t slab_bytes = 4 * mib;

class slab_pinner_test : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = driver_->open(0, nullptr);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    session_ = *opened;
  }
  void TearDown() override {
    waiting_.rest();
    for (const auto& each : taken_) pool_.give_back(each);
  }

  // Takes a slab as a disk lane does, and keeps it until the test ends.
  bool take() {
    const auto got = pool_.try_take(slab_bytes, *session_, slab_user::disk, &pinner_);
    if (!got.ok()) ADD_FAILURE() << got.error().message();
    if (!got.ok() || !*got) return false;
    taken_.push_back(*got);
    return true;
  }

  std::shared_ptr<testing::faulty_kernel> kernel_ = std::make_shared<testing::faulty_kernel>();
  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
  pinned_budget budget_{512 * mib};
  slab_pool pool_{*kernel_, budget_, 128 * mib, 96 * mib};
  feeders copies_;
  answer_times times_;
  disk_lanes lanes_{1, *kernel_, copies_};
  waiting_lanes waiting_{4, times_, copies_};
  threaded_pinner pinner_{waiting_, lanes_};
  std::vector<slab> taken_;
};

TEST_F(slab_pinner_test, the_first_slab_is_pinned_by_the_thread_that_needs_it) {
  EXPECT_TRUE(take());
  waiting_.rest();
  EXPECT_EQ(budget_.used_bytes.load(), slab_bytes) << "and no more than that slab";
}

TEST_F(slab_pinner_test, later_slabs_are_pinned_by_other_threads) {
  ASSERT_TRUE(take());
  EXPECT_FALSE(take()) << "it is asked for";
  waiting_.rest();
  EXPECT_EQ(budget_.used_bytes.load(), 2 * slab_bytes);
  EXPECT_TRUE(take());
}

TEST_F(slab_pinner_test, chunks_grow_with_the_pool_up_to_the_share) {
  std::size_t chunks = 0;
  for (std::size_t before = 0; taken_.size() * slab_bytes < 96 * mib; waiting_.rest()) {
    if (const auto pinned = budget_.used_bytes.load(); pinned > before) {
      ++chunks;
      before = pinned;
    }
    (void)take();
  }
  EXPECT_LE(chunks, 16U) << "a ring can register them all";
  EXPECT_FALSE(take());
  waiting_.rest();
  EXPECT_FALSE(take()) << "the share is used up";
}

TEST_F(slab_pinner_test, memory_that_cannot_be_pinned_is_waited_for_while_there_are_slabs) {
  ASSERT_TRUE(take());
  kernel_->fail({.call = "map_memory", .nth = 1, .error = ENOMEM});
  EXPECT_FALSE(take());
  waiting_.rest();
  EXPECT_EQ(pool_.last_refusal().code(), errc::out_of_memory);
  EXPECT_TRUE(take()) << "the thread that needs it tries again";
  EXPECT_TRUE(pool_.last_refusal().ok());
}

TEST_F(slab_pinner_test, memory_that_nothing_can_provide_is_an_error) {
  ASSERT_TRUE(take());
  kernel_->fail({.call = "map_memory", .nth = 1, .error = ENOMEM, .lasting = true});
  EXPECT_FALSE(take());
  waiting_.rest();
  const auto kept = taken_.back();
  const auto larger = pool_.try_take(large_slab_bytes, *session_, slab_user::disk, &pinner_);
  EXPECT_TRUE(larger.ok() && !*larger) << "a slab may still be returned";
  taken_.clear();
  pool_.give_back(kept);
  const auto refused = pool_.try_take(large_slab_bytes, *session_, slab_user::disk, &pinner_);
  EXPECT_EQ(refused.error().code(), errc::out_of_memory);
}

}  // namespace
}  // namespace penstock::staging::slab_pinner_tests
