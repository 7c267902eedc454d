// Tests the wrapper with which other tests inject failures.
#include "support/faulty_device.hpp"

#include "device/device_fixture.hpp"

namespace penstock::testing {
namespace {

class faulty_device : public ::testing::Test {
 protected:
  void SetUp() override { session_ = value_of(driver_->open(0, nullptr)); }
  device::session& session() { return *session_; }

  const status broken_{errc::device, "injected"};
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
};

TEST_F(faulty_device, passes_everything_on_without_faults) {
  const auto content = random_bytes(5000, 1);
  std::vector<std::byte> back(5000);
  const device_memory memory(session(), 5000);
  PENSTOCK_EXPECT_OK(session().copy_small(memory.data(), content.data(), 5000, nullptr));
  PENSTOCK_EXPECT_OK(session().copy_small(back.data(), memory.data(), 5000, nullptr));
  EXPECT_EQ(back, content);
  EXPECT_EQ(value_of(driver_->classify(memory.data())).type, device::memory_type::device);
  EXPECT_EQ(driver_->calls("copy_small"), 2U);
  EXPECT_EQ(driver_->injected(), 0U);
  EXPECT_EQ(value_of(driver_->open(0, nullptr)), session_) << "one session per session inside";
}

TEST_F(faulty_device, fails_the_nth_call_of_a_kind_once) {
  driver_->fail("make_event", 2, broken_);
  const auto first = session().make_event();
  const auto second = session().make_event();
  const auto third = session().make_event();
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(second.error().message(), "injected");
  EXPECT_TRUE(third.ok());
  EXPECT_EQ(driver_->live().events, 2);
  PENSTOCK_EXPECT_OK(session().destroy_event(*first));
  PENSTOCK_EXPECT_OK(session().destroy_event(*third));
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(faulty_device, fails_from_the_nth_call_on) {
  driver_->fail("synchronize", 2, broken_, faulty_driver::always);
  PENSTOCK_EXPECT_OK(session().synchronize(nullptr));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(session().synchronize(nullptr).code(), errc::device);
  EXPECT_EQ(driver_->injected(), 5U);
  driver_->clear_faults();
  PENSTOCK_EXPECT_OK(session().synchronize(nullptr));
}

TEST_F(faulty_device, fails_the_nth_call_of_any_kind) {
  driver_->fail_any(2, broken_);
  EXPECT_TRUE(driver_->count().ok());
  EXPECT_EQ(driver_->describe(0).error().code(), errc::device);
  EXPECT_TRUE(driver_->describe(0).ok());
}

TEST_F(faulty_device, asks_the_hook_with_name_and_number) {
  std::vector<std::string> asked;
  driver_->set_hook([&](std::string_view call, std::uint64_t n) -> std::optional<status> {
    asked.push_back(std::string(call) + std::to_string(n));
    if (call == "reached" && n == 2) return broken_;
    return std::nullopt;
  });
  {
    const scoped_event event(session());
    EXPECT_TRUE(session().reached(event).ok());
    EXPECT_FALSE(session().reached(event).ok());
  }
  EXPECT_EQ(asked, (std::vector<std::string>{"make_event1", "reached1", "reached2", "destroy_event1"}));
}

TEST_F(faulty_device, a_failed_call_does_not_reach_the_device) {
  const device_memory memory(session(), 4096);
  const auto content = random_bytes(4096, 2);
  std::vector<std::byte> back(4096);
  PENSTOCK_EXPECT_OK(session().copy_small(memory.data(), content.data(), 4096, nullptr));
  driver_->fail("copy_small", 1, broken_);
  EXPECT_FALSE(session().copy_small(memory.data(), back.data(), 4096, nullptr).ok());
  PENSTOCK_EXPECT_OK(session().copy_small(back.data(), memory.data(), 4096, nullptr));
  EXPECT_EQ(back, content);
}

TEST_F(faulty_device, counts_what_is_alive) {
  {
    const device_memory memory(session(), 4096);
    const pinned_memory pinned(session(), 4096);
    const scoped_stream stream(session());
    const auto live = driver_->live();
    EXPECT_EQ(live.allocations, 1);
    EXPECT_EQ(live.pinned_ranges, 1);
    EXPECT_EQ(live.streams, 1);
    EXPECT_FALSE(live.none());
    EXPECT_FALSE(session().unpin(this).ok());
    EXPECT_EQ(driver_->live().pinned_ranges, 1) << "what failed inside changes nothing";
  }
  EXPECT_TRUE(driver_->live().none());
}

}  // namespace
}  // namespace penstock::testing
