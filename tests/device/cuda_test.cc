// The cuda driver on a machine without CUDA: it says why, and has no other effect.
#include <thread>

#include "device/device_fixture.hpp"

namespace penstock::testing {
namespace {

class cuda_absent : public ::testing::Test {
 protected:
  void SetUp() override {
    if (driver_->count().ok()) GTEST_SKIP() << "there is a CUDA device";
  }
  std::shared_ptr<device::driver> driver_ = device::make_cuda_driver();
};

TEST_F(cuda_absent, every_call_tells_the_same_reason) {
  const status reason = driver_->count().error();
  EXPECT_FALSE(reason.message().empty());
  EXPECT_NE(reason.code(), errc::internal);
  EXPECT_EQ(driver_->count().error().message(), reason.message());
  EXPECT_EQ(driver_->open(0, nullptr).error().message(), reason.message());
  EXPECT_EQ(driver_->describe(0).error().message(), reason.message());
}

TEST_F(cuda_absent, all_memory_is_host_memory) {
  int local = 0;
  std::thread([&] { EXPECT_EQ(value_of(driver_->classify(&local)).type, device::memory_type::host); }).join();
  EXPECT_EQ(value_of(driver_->classify(&local)).base, nullptr);
}

TEST_F(cuda_absent, many_threads_may_ask_first) {
  const auto fresh = device::make_cuda_driver();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { EXPECT_FALSE(fresh->count().ok()); });
  for (auto& each : threads) each.join();
}

}  // namespace
}  // namespace penstock::testing
