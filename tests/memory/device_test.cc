// Memory runs out in calls of the host device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>

#include "device/device.hpp"
#include "memory/failing_allocations.hpp"

namespace penstock::testing {
namespace {

// The caller uses his memory again as soon as the call has ended: no copy may come later.
TEST(device_without_memory, a_small_copy_that_failed_does_not_copy_later) {
  const auto driver = device::make_host_driver();
  const auto opened = driver->open(0, nullptr);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  auto& session = **opened;
  const auto stream = session.make_stream();
  ASSERT_TRUE(stream.ok()) << stream.error().message();
  const auto memory = session.allocate(4096);
  ASSERT_TRUE(memory.ok()) << memory.error().message();

  unsigned failures = 0;
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    for (int i = 0; i < 64; ++i) {  // a queue needs memory at some places only
      std::array<std::byte, 64> zeros{};
      std::array<std::byte, 64> seen{};
      std::array<std::byte, 64> content{};
      content.fill(std::byte{0x5a});
      ASSERT_TRUE(session.copy_small(*memory, zeros.data(), zeros.size(), *stream).ok());
      status outcome;
      try {
        const failing_allocations armed(allocations_of::the_caller, nth);
        outcome = session.copy_small(*memory, content.data(), content.size(), *stream);
      } catch (const std::bad_alloc&) {
        outcome = {errc::out_of_memory, "bad_alloc"};
      }
      ASSERT_TRUE(session.synchronize(*stream).ok());
      ASSERT_TRUE(session.copy_small(seen.data(), *memory, seen.size(), *stream).ok());
      if (!outcome.ok()) ++failures;
      EXPECT_EQ(seen, outcome.ok() ? content : zeros) << "allocation " << nth;
    }
  }
  EXPECT_GT(failures, 0U);
  EXPECT_TRUE(session.release(*memory).ok());
  EXPECT_TRUE(session.destroy_stream(*stream).ok());
}

// Whoever lets go of a stream has no way of keeping it: its thread would stay until the driver ends.
TEST(device_without_memory, a_stream_is_destroyed) {
  const auto driver = device::make_host_driver();
  const auto opened = driver->open(0, nullptr);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  auto& session = **opened;
  for (int i = 0; i < 8; ++i) {
    const auto stream = session.make_stream();
    ASSERT_TRUE(stream.ok()) << stream.error().message();
    {
      const failing_allocations armed(allocations_of::the_caller, 1, true);
      ASSERT_NO_THROW(EXPECT_TRUE(session.destroy_stream(*stream).ok()));
    }
    EXPECT_EQ(session.synchronize(*stream).code(), errc::invalid_argument) << "it is still there";
  }
}

}  // namespace
}  // namespace penstock::testing
