// Tensors in device memory, between processes: sent over the connection, or mapped from one process into the other.
#include <deque>
#include <string>
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

TEST_P(pipe_device_processes, messages_that_have_come_are_received_at_once_in_order_and_one_may_fail) {
  constexpr std::size_t count = 30;
  constexpr std::size_t size = 100'000;
  constexpr std::size_t wrong = 7;
  start("answers", size);
  ASSERT_EQ(peer_->line(), "there");
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    struct receive_of_one {
      incoming_message message;
      operation receiving;
    };
    std::deque<receive_of_one> all(count);
    std::deque<guarded_memory> targets;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(pipe_.send({"answer"}).wait().ok());
      targets.push_back(on_device(size));
      targets.back().fill(bytes(size, std::byte{7}));
    }
    ASSERT_TRUE(pipe_.send({"come?"}).wait().ok());
    ASSERT_EQ(peer_->line(), "come");  // so none of these is pushed
    if (fails && maps()) doors_.driver->fail("copy", wrong + 1, status(errc::device, "injected"), 1);
    for (std::size_t i = 0; i < count; ++i) {
      all[i].receiving = pipe_.receive(all[i].message, std::vector<incoming_target>{{targets[i].data(), size}});
    }
    for (std::size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      const auto got = all[i].receiving.wait();
      EXPECT_EQ(all[i].message.metadata(), std::to_string(i + 1 + (fails ? count : 0)));
      if (fails && maps() && i == wrong) {
        EXPECT_EQ(got.error.code(), errc::device) << told(got.error);
        continue;
      }
      ASSERT_TRUE(got.ok()) << told(got.error);
      targets[i].expect(bytes(size, std::byte{42}));
    }
    doors_.driver->clear_faults();
  }
}

TEST_P(pipe_device_processes, one_that_is_killed_among_many_receives_ends_all_of_them) {
  constexpr std::size_t count = 30;
  constexpr std::size_t size = 1 * mib;
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    start("answers", size);
    ASSERT_EQ(peer_->line(), "there");
    std::deque<incoming_message> messages(count);
    std::deque<operation> receiving;
    std::deque<guarded_memory> targets;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(pipe_.send({"answer"}).wait().ok());
      targets.push_back(on_device(size));
    }
    ASSERT_TRUE(pipe_.send({"come?"}).wait().ok());
    ASSERT_EQ(peer_->line(), "come");
    for (std::size_t i = 0; i < count; ++i) {
      receiving.push_back(pipe_.receive(messages[i], std::vector<incoming_target>{{targets[i].data(), size}}));
      if (i == count * static_cast<std::size_t>(round) / 4) peer_->kill();
    }
    for (std::size_t i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      const auto got = receiving[i].wait();
      EXPECT_TRUE(got.ok() || got.error.code() == errc::closed) << told(got.error);
      if (got.ok()) targets[i].expect(bytes(size, std::byte{42}));
      targets[i].fill(bytes(size, std::byte{9}));
    }
    pipe_.close();
    expect_nothing_mapped();
    for (auto& each : targets) each.expect(bytes(size, std::byte{9}));
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
