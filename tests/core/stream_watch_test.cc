#include "core/stream/stream_watch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace penstock::core {
namespace {

class request : public stream_watched {
 public:
  seen look() noexcept override { return seen::nothing; }
  void end() noexcept override { ++ended; }
  int ended = 0;
};

TEST(stream_watch, ends_what_is_left_when_it_goes) {
  constexpr std::array<int, 2> streams{};
  std::array<request, 4> requests;
  {
    stream_watch watch(std::chrono::microseconds(0));
    for (std::size_t i = 0; i < requests.size(); ++i) ASSERT_TRUE(watch.add(&streams[i % streams.size()], requests[i]).ok());
  }
  for (const auto& each : requests) EXPECT_EQ(each.ended, 1);
}

}  // namespace
}  // namespace penstock::core
