// Streams and events that are destroyed with their owner.
#include "device/owned.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "device/device_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {
namespace {

class owned_handles : public ::testing::Test {
 protected:
  device::session& session() { return *value_of(driver_->open(0, nullptr)); }
  device::owned_stream stream() { return *device::owned_stream::make(session()); }

  const status broken_{errc::device, "broken"};
  std::shared_ptr<faulty_driver> driver_ = make_faulty_driver(device::make_host_driver());
};

TEST_F(owned_handles, go_with_their_owner) {
  {
    const auto stream = device::owned_stream::make(session());
    const auto event = device::owned_event::make(session());
    ASSERT_TRUE(stream && event);
    PENSTOCK_EXPECT_OK(session().record(event->get(), stream->get()));
    EXPECT_EQ(driver_->live().streams, 1);
    EXPECT_EQ(driver_->live().events, 1);
  }
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(owned_handles, move_and_are_replaced) {
  auto first = stream();
  auto* const handle = first.get();
  device::owned_stream second = std::move(first);
  EXPECT_EQ(second.get(), handle);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  second = stream();
  EXPECT_EQ(driver_->live().streams, 1);
  auto* const released = second.release();
  EXPECT_FALSE(second);
  EXPECT_EQ(driver_->live().streams, 1) << "the caller's now";
  PENSTOCK_EXPECT_OK(device::owned_stream(session(), released).close());
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(owned_handles, tell_of_an_error_when_closed_and_not_when_they_end) {
  driver_->fail("make_event", 1, broken_);
  EXPECT_EQ(device::owned_event::make(session()).error().code(), broken_.code());
  driver_->fail("destroy_event", 2, broken_);
  { const auto unheard = device::owned_event::make(session()); }
  auto event = device::owned_event::make(session());
  ASSERT_TRUE(event);
  EXPECT_EQ(event->close().code(), broken_.code());
  PENSTOCK_EXPECT_OK(event->close());
  EXPECT_TRUE(driver_->live().none());
}

}  // namespace
}  // namespace penstock::testing
