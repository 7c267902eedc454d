// Tensors in device memory, between processes: sent over the connection, or mapped from one process into the other.
#include <thread>

#include "pipe/device_process_fixture.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

TEST_P(pipe_device_processes, tensors_come_back_as_they_went_and_memory_is_mapped_once) {
  start("echoes");
  ASSERT_EQ(peer_->line(), "there");
  const std::size_t largest = 5 * mib + 1;
  auto source = on_device(largest);
  for (const std::size_t size : {largest, std::size_t{20'000}, std::size_t{100}}) {
    SCOPED_TRACE(size);
    const auto content = some_bytes(size, 9);
    source.fill(content);
    auto target = on_device(size);
    auto sent = pipe_.send({"echo", {}, {{source.data(), size}}});
    const auto got = receive(target);
    ASSERT_TRUE(got.ok()) << told(got.error);
    target.expect(content);
    EXPECT_TRUE(sent.wait().ok());
  }
  EXPECT_EQ(chosen(), maps() ? "cuda_ipc" : "cuda_basic");
  EXPECT_EQ(doors_.driver->calls("open_shared"), maps() ? 1U : 0U);
  EXPECT_LE(doors_.driver->calls("export_shared"), 1U) << "the other end has had the descriptor";
  pipe_.close();
  expect_nothing_mapped();
}

// Which end's memory it is that cannot be shared, and of which no descriptor can be had.
TEST_P(pipe_device_processes, what_is_not_shared_comes_another_way) {
  for (const char* call : {"share", "export_shared"}) {
    SCOPED_TRACE(call);
    doors_.driver->fail(call, 1, status(errc::unsupported, "not to be shared"), 1);
    start("echoes");
    ASSERT_EQ(peer_->line(), "there");
    const auto content = some_bytes(3 * mib, 9);
    auto source = on_device(content.size());
    source.fill(content);
    for (int i = 0; i < 2; ++i) {
      auto target = on_device(content.size());
      auto sent = pipe_.send({"echo", {}, {{source.data(), content.size()}}});
      const auto got = receive(target);
      ASSERT_TRUE(got.ok()) << told(got.error);
      target.expect(content);
      EXPECT_TRUE(sent.wait().ok());
    }
    pipe_.close();
    doors_.driver->clear_faults();
  }
}

TEST_P(pipe_device_processes, what_cannot_be_mapped_goes_another_way_and_explain_says_why) {
  doors_.driver->fail("open_shared", 1, status(errc::device, "no peer access"), faulty_driver::always);
  start("echoes");
  ASSERT_EQ(peer_->line(), "there");
  const auto content = some_bytes(3 * mib, 9);
  auto source = on_device(content.size());
  source.fill(content);
  auto target = on_device(content.size());
  auto sent = pipe_.send({"echo", {}, {{source.data(), content.size()}}});
  ASSERT_TRUE(receive(target).ok());
  target.expect(content);
  EXPECT_TRUE(sent.wait().ok());
  EXPECT_EQ(chosen(), "cuda_basic");
  bool told_why = false;
  for (const auto& each : route()) told_why = told_why || each.refusal.find("no peer access") != std::string::npos;
  EXPECT_EQ(told_why, maps());
}

TEST_P(pipe_device_processes, one_that_is_killed_while_it_sends_gives_no_wrong_bytes_and_leaves_nothing_mapped) {
  constexpr std::size_t size = 64 * mib;
  const bytes content(size, std::byte{42});
  for (int i = 0; i < 5; ++i) {
    start("sends", size);
    ASSERT_EQ(peer_->line(), "there");
    incoming_message come;
    ASSERT_TRUE(pipe_.next(come).wait().ok());
    auto target = on_device(size);
    if (i == 0) peer_->kill();
    auto receiving = come.receive({{target.data(), size}});
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
    peer_->kill();
    const auto outcome = receiving.wait();
    if (outcome.ok()) {
      target.expect(content);
    } else {
      EXPECT_TRUE(outcome.error.code() == errc::closed || outcome.error.code() == errc::io) << told(outcome.error);
    }
    incoming_message never;
    EXPECT_EQ(pipe_.next(never).wait().error.code(), errc::closed);
    pipe_.close();
    expect_nothing_mapped();
  }
}

TEST_P(pipe_device_processes, one_that_is_killed_ends_what_is_sent_to_it) {
  auto source = on_device(64 * mib);
  for (const std::string step : {"known", "has the message", "receives"}) {
    SCOPED_TRACE(step);
    start(step);
    auto sent = pipe_.send({"", {}, {{source.data(), source.size()}}});
    ASSERT_EQ(peer_->line(), "there");
    peer_->kill();
    const auto outcome = sent.wait();  // it may just have arrived
    EXPECT_TRUE(outcome.ok() || outcome.error.code() == errc::closed) << told(outcome.error);
    EXPECT_TRUE(step == "receives" || !outcome.ok());
  }
}

TEST_P(pipe_device_processes, one_that_is_stopped_holds_up_nothing_beyond_a_deadline) {
  auto source = on_device(8 * mib);
  start("has the message");
  ASSERT_TRUE(pipe_.explain().ok());  // so that the message leaves at once
  auto sent = pipe_.send({"", {}, {{source.data(), source.size()}}}, within(200ms));
  ASSERT_EQ(peer_->line(), "there");
  peer_->send_signal(SIGSTOP);
  EXPECT_EQ(sent.wait().error.code(), errc::timed_out);
  peer_->send_signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_device_processes, ::testing::Values(way{"ipc", "unix:", {}}, way{"basic", "unix:", {"cuda_basic"}}),
                         name_of_way);

}  // namespace
}  // namespace penstock::testing
