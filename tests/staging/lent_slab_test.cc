#include "staging/lent_slab.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <vector>

#include "support/lone_link.hpp"

namespace penstock::staging {
namespace {

class lent_slab_test : public ::testing::Test {
 protected:
  link& via() { return *link_.place().via; }
  result<lent_slab> wait(lanes& helped, const std::function<status()>& stopped) {
    return wait_for_slab(via(), large_slab_bytes, helped, feeders_, stopped);
  }
  result<lent_slab> wait(const std::function<status()>& stopped) { return wait(lanes_, stopped); }

  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  std::shared_ptr<device::driver> driver_ = device::make_host_driver();
  testing::lone_link link_{*kernel_, **driver_->open(0, nullptr)};
  feeders feeders_;
  lanes lanes_{1, std::chrono::microseconds(0), nullptr};
};

TEST_F(lent_slab_test, goes_back_with_whoever_holds_it_last) {
  {
    auto lent = wait([] { return status(); });
    ASSERT_TRUE(lent.ok()) << lent.error().message();
    lent_slab held = *std::move(lent);
    EXPECT_FALSE(*lent) << "it was moved out";
    EXPECT_TRUE(held);
    EXPECT_GE(held.size(), large_slab_bytes);
    lent_slab other;
    other = std::move(held);
    EXPECT_EQ(via().pool().slabs_out(), 1U);
    const slab released = other.release();
    EXPECT_FALSE(other);
    EXPECT_EQ(via().pool().slabs_out(), 1U);
    other = lent_slab(via().pool(), released);
  }
  EXPECT_EQ(via().pool().slabs_out(), 0U);
}

TEST_F(lent_slab_test, who_waits_and_is_stopped_is_told_why) {
  std::vector<lent_slab> all;
  int asked = 0;
  for (;;) {
    auto lent = wait([&] { return ++asked < 3 ? status() : status(errc::cancelled, "the test has it stop"); });
    if (!lent) {
      EXPECT_EQ(lent.error().code(), errc::cancelled);
      break;
    }
    all.push_back(*std::move(lent));
  }
  EXPECT_EQ(asked, 3) << "not asked while there were slabs, and again after each sleep";
  EXPECT_EQ(via().pool().slabs_out(), all.size());
}

// What it does meanwhile may take as long as a file system that stalls, and copies of others must not wait for that.
TEST_F(lent_slab_test, who_waits_lets_go_of_the_watch_before_it_does_urgent_work) {
  struct called_work final : work {
    std::function<void()> body;
    bool run() override {
      body();
      return true;
    }
  };
  std::latch lane_is_busy(1);
  std::latch done(1);
  called_work occupying;
  work_list list;
  bool ran = false;
  bool watch_was_free = false;
  called_work urgent;
  work_list urgent_list;
  lanes busy{1, std::chrono::microseconds(0), nullptr};  // ends before what its thread waits for and runs
  occupying.body = [&] {
    lane_is_busy.count_down();
    done.wait();
  };
  ASSERT_TRUE(busy.push(list, occupying).ok());
  lane_is_busy.wait();
  urgent.body = [&] {
    ran = true;
    watch_was_free = static_cast<bool>(feeders_.try_watch());
  };
  std::vector<lent_slab> all;
  int asked = 0;
  const auto stopped = [&]() -> status {
    if (++asked == 2) busy.push_urgent(urgent_list, urgent);  // once it has slept, with the watch
    return ran ? status(errc::cancelled, "the test has it stop") : status();
  };
  for (auto lent = wait(busy, stopped); lent.ok(); lent = wait(busy, stopped)) all.push_back(*std::move(lent));
  done.count_down();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(watch_was_free);
}

}  // namespace
}  // namespace penstock::staging
