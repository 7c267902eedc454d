// Statistics of pipes in an engine and on its board: bytes carried, by channel, and messages under way.
#include <unistd.h>

#include "penstock/processes.hpp"
#include "pipe/pipe_fixture.hpp"

namespace penstock::testing::pipe_stats_tests {
namespace {

constexpr std::size_t large = std::size_t{3} << 20;

class pipe_stats : public pipe_fixture, public ::testing::WithParamInterface<way> {
 protected:
  pipe_stats() : pipe_fixture(GetParam()) {}
  void SetUp() override { PENSTOCK_SKIP_WITHOUT(GetParam()); }
  // Those of requests() that are of pipes, sends or receives.
  [[nodiscard]] std::vector<request_info> under_way(bool sends) const {
    std::vector<request_info> found;
    for (auto& each : engine_->requests()) {
      if (each.of_pipe && each.is_write == sends) found.push_back(std::move(each));
    }
    return found;
  }
};

TEST_P(pipe_stats, tensors_are_counted_by_the_channel_that_carried_them) {
  const auto content = some_bytes(large, 1);
  for (int i = 0; i < 2; ++i) {
    auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
    const auto got = receive_from(there_);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    ASSERT_TRUE(sent.wait().ok());
  }
  const auto mine = here_.stats();
  ASSERT_EQ(mine.size(), 1U);
  EXPECT_EQ(mine[0].sent_bytes, 2 * large);
  // Both ends are this engine's.
  const auto all = engine_->stats().by_channel;
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].name, mine[0].name);
  EXPECT_EQ(all[0].sent_tensors, 2U);
  EXPECT_EQ(all[0].sent_bytes, 2 * large);
  EXPECT_EQ(all[0].received_tensors, 2U);
  EXPECT_EQ(all[0].received_bytes, 2 * large);
  EXPECT_NE(engine_->summary().find(all[0].name + ": "), std::string::npos) << engine_->summary();
  const auto seen = observe_process(getpid());
  ASSERT_TRUE(seen.ok()) << seen.error().message();
  const auto shown = std::ranges::find(seen->stats.by_channel, all[0].name, &channel_stats::name);
  ASSERT_NE(shown, seen->stats.by_channel.end());
  EXPECT_GE(shown->received_bytes, 2 * large) << "what other engines of this process have counted stays";
}

TEST_P(pipe_stats, messages_under_way_are_listed_until_they_have_ended) {
  EXPECT_TRUE(engine_->requests().empty());
  const auto content = some_bytes(large, 1);
  auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
  const auto waiting = under_way(true);
  ASSERT_EQ(waiting.size(), 1U) << "nobody receives it";
  EXPECT_EQ(waiting[0].length, large);
  EXPECT_EQ(waiting[0].offset, -1);
  EXPECT_EQ(waiting[0].device, "host");
  EXPECT_FALSE(waiting[0].file.empty());
  EXPECT_GT(waiting[0].since_ns, 0);
  std::optional<std::vector<request_info>> shown;
  const auto answered = [&] { return (shown = observe_process(getpid()).value_or({}).requests).has_value(); };
  ASSERT_TRUE(comes_true(answered)) << "a busy machine may need longer than one question waits";
  EXPECT_TRUE(std::ranges::any_of(*shown, [](const auto& each) { return each.of_pipe && each.length == large; }));

  bytes room(large);
  incoming_message message;
  auto posted = here_.receive(message, std::vector<incoming_target>{{room.data(), room.size()}});
  const auto got = receive_from(there_);
  EXPECT_TRUE(got.outcome.ok()) << got.outcome.error.message();
  EXPECT_TRUE(sent.wait().ok());
  EXPECT_TRUE(under_way(true).empty());
  posted.cancel();
  EXPECT_EQ(posted.wait().error.code(), errc::cancelled);
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_P(pipe_stats, a_pipe_that_is_gone_tells_nothing) {
  const auto content = some_bytes(large, 1);
  auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
  EXPECT_EQ(under_way(true).size(), 1U);
  here_.close();
  EXPECT_FALSE(sent.wait().ok());
  EXPECT_TRUE(under_way(true).empty());
  here_ = {};
  there_ = {};
  EXPECT_TRUE(engine_->requests().empty());
  EXPECT_TRUE(engine_->stats().by_channel.empty());
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_stats, ::testing::ValuesIn(all_ways()), name_of_way);

}  // namespace
}  // namespace penstock::testing::pipe_stats_tests
