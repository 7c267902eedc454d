#include "staging/lent_slab.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "support/lone_link.hpp"

namespace penstock::staging {
namespace {

class lent_slab_test : public ::testing::Test {
 protected:
  link& via() { return *link_.place().via; }
  result<lent_slab> wait(const std::function<status()>& stopped) {
    return wait_for_slab(via(), large_slab_bytes, lanes_, feeders_, stopped);
  }

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

}  // namespace
}  // namespace penstock::staging
