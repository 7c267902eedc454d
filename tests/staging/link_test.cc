#include "staging/link.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "device/device_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::staging {
namespace {

using testing::device_memory;
using testing::pinned_memory;
using testing::random_bytes;

constexpr std::size_t little = 4096;

class link_test : public ::testing::Test {
 protected:
  void copy_there_and_back() {
    const auto content = random_bytes(little, 1);
    host_.fill(content);
    const auto stream = testing::value_of(link_.small_stream());
    PENSTOCK_EXPECT_OK(link_.copy_little(memory_.data(), host_.data(), little, stream));
    std::memset(host_.data(), 0, little);
    PENSTOCK_EXPECT_OK(link_.copy_little(host_.data(), memory_.data(), little, stream));
    EXPECT_TRUE(host_.holds(content));
  }

  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session& session_ = *testing::value_of(driver_->open(0, nullptr));
  pinned_memory host_{session_, little};
  device_memory memory_{session_, little};
  feeder feeder_{session_};
  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  pinned_budget budget_{std::size_t{64} << 20};
  slab_pool pool_{*kernel_, budget_, std::size_t{64} << 20, std::size_t{64} << 20};
  link link_{session_, feeder_, pool_, true};
};

TEST_F(link_test, a_little_copy_takes_the_way_of_all_copies) {
  copy_there_and_back();
  EXPECT_EQ(driver_->calls("copy_small"), 2U);
  EXPECT_EQ(driver_->calls("copy_beside"), 0U);
}

TEST_F(link_test, a_little_copy_goes_past_others_while_the_link_is_occupied) {
  {
    const link::occupation occupied(link_);
    copy_there_and_back();
  }
  EXPECT_EQ(driver_->calls("copy_beside"), 2U);
  copy_there_and_back();
  EXPECT_EQ(driver_->calls("copy_beside"), 2U);
}

}  // namespace
}  // namespace penstock::staging
