// The contract of every pipe, for each transport and channel.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <latch>
#include <thread>
#include <tuple>

#include "pipe/pipe_fixture.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

class pipe_contract : public pipe_fixture, public ::testing::WithParamInterface<way> {
 protected:
  pipe_contract() : pipe_fixture(GetParam()) {}
  void SetUp() override { PENSTOCK_SKIP_WITHOUT(GetParam()); }
};

constexpr std::size_t sizes[] = {0, 1, 4096, 16 * 1024, 16 * 1024 + 1, (1 << 20) + 3, 9 << 20};

TEST_P(pipe_contract, tensors_of_any_size_arrive_as_they_were_sent) {
  for (const auto size : sizes) {
    SCOPED_TRACE(size);
    const auto content = some_bytes(size, 3);
    outgoing_message message;
    message.metadata = "step " + std::to_string(size);
    message.tensors.push_back({content.data(), content.size(), "weights"});
    auto sent = here_.send(message);
    auto got = receive_from(there_);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    EXPECT_EQ(got.outcome.bytes_done, size);
    EXPECT_EQ(got.message.metadata(), message.metadata);
    EXPECT_EQ(got.message.tensors().front().metadata, "weights");
    EXPECT_EQ(got.tensors.front(), content);
    const auto outcome = sent.wait();
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, size);
  }
}

TEST_P(pipe_contract, a_message_has_payloads_and_several_tensors_of_which_some_are_empty) {
  const auto first = some_bytes(3 << 20, 1);
  const auto second = some_bytes(5000, 2);
  const auto payload = some_bytes(70'000, 3);
  outgoing_message message;
  message.payloads = {{payload.data(), payload.size(), "p"}, {nullptr, 0, "none"}, {second.data(), 7, ""}};
  message.tensors = {{first.data(), first.size(), "a"}, {nullptr, 0, "b"}, {second.data(), second.size(), "c"}};
  auto sent = there_.send(message);
  auto got = receive_from(here_);
  ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
  EXPECT_EQ(got.tensors, (std::vector<bytes>{first, {}, second}));
  const auto payloads = got.message.payloads();
  ASSERT_EQ(payloads.size(), 3U);
  EXPECT_EQ(bytes(payloads[0].bytes.begin(), payloads[0].bytes.end()), payload);
  EXPECT_EQ(payloads[0].metadata, "p");
  EXPECT_TRUE(payloads[1].bytes.empty());
  EXPECT_EQ(bytes(payloads[2].bytes.begin(), payloads[2].bytes.end()), bytes(second.begin(), second.begin() + 7));
  EXPECT_TRUE(sent.wait().ok());
}

TEST_P(pipe_contract, the_receiver_is_told_where_the_sender_would_have_a_tensor) {
  const auto large = some_bytes(100'000, 1);
  const std::string longest(64, 'x');
  for (const std::size_t size : {std::size_t{10}, large.size()}) {
    outgoing_message message;
    for (const auto& name : {std::string("cuda:1"), std::string(), std::string("host"), longest}) {
      message.tensors.push_back({.memory = large.data(), .length = size, .metadata = "m", .target_device = name});
    }
    auto sent = here_.send(message);
    auto got = receive_from(there_);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    ASSERT_EQ(got.message.tensors().size(), message.tensors.size());
    for (std::size_t i = 0; i < message.tensors.size(); ++i) {
      EXPECT_EQ(got.message.tensors()[i].target_device, message.tensors[i].target_device);
      EXPECT_EQ(got.message.tensors()[i].metadata, "m");
      EXPECT_EQ(got.message.tensors()[i].device, "host");
    }
    EXPECT_TRUE(sent.wait().ok());
  }
  for (const auto& name : {longest + "x", std::string("cuda 1"), std::string("cuda:1\n"), std::string("\xc3\xbc")}) {
    const auto outcome = here_.send({"", {}, {{}, {.memory = large.data(), .length = 10, .target_device = name}}}).wait();
    EXPECT_EQ(outcome.error.code(), errc::invalid_argument);
    EXPECT_NE(outcome.error.message().find("tensor 1: \"" + name), std::string_view::npos) << outcome.error.message();
  }
  const auto outcome = here_.send({"", {{.memory = large.data(), .length = 10, .target_device = "cuda:0"}}, {}}).wait();
  EXPECT_EQ(outcome.error.code(), errc::invalid_argument);
  EXPECT_NE(outcome.error.message().find("payload 0"), std::string_view::npos) << outcome.error.message();
}

TEST_P(pipe_contract, both_directions_at_once_in_order) {
  constexpr int count = 60;
  const auto run = [&](const penstock::pipe& mine, unsigned seed, unsigned others) {
    std::vector<bytes> contents;
    std::vector<operation> sent;
    for (int i = 0; i < count; ++i) contents.push_back(some_bytes(static_cast<std::size_t>(i) * 4001, seed + static_cast<unsigned>(i)));
    for (int i = 0; i < count; ++i) {
      outgoing_message message;
      message.metadata = std::to_string(i);
      message.tensors.push_back({contents[static_cast<std::size_t>(i)].data(), contents[static_cast<std::size_t>(i)].size()});
      sent.push_back(mine.send(message));
    }
    for (int i = 0; i < count; ++i) {
      auto got = receive_from(mine);
      ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
      EXPECT_EQ(got.message.metadata(), std::to_string(i));
      EXPECT_EQ(got.tensors.front(), some_bytes(static_cast<std::size_t>(i) * 4001, others + static_cast<unsigned>(i)));
    }
    for (auto& each : sent) EXPECT_TRUE(each.wait().ok());
  };
  std::thread other([&] { run(there_, 100, 500); });
  run(here_, 500, 100);
  other.join();
}

TEST_P(pipe_contract, callbacks_come_once_and_nobody_need_wait) {
  constexpr int count = 300;
  const auto small = some_bytes(100, 1);
  const auto large = some_bytes(100'000, 2);
  std::atomic<int> sent{0};
  std::atomic<int> arrived{0};
  std::atomic<int> wrong{0};
  struct slot {
    incoming_message message;
    std::vector<bytes> room;
  };
  std::deque<slot> slots(count);
  for (int i = 0; i < count; ++i) {
    auto& each = slots[static_cast<std::size_t>(i)];
    (void)there_.next(each.message, {}, [&](const io_result& came) {
      if (!came.ok()) ++wrong;
      (void)each.message.receive(room_for(each.message, each.room), {}, [&](const io_result& outcome) {
        if (!outcome.ok() || (each.room.front() != small && each.room.front() != large)) ++wrong;
        ++arrived;
      });
    });
  }
  for (int i = 0; i < count; ++i) {
    const auto& content = i % 2 == 0 ? small : large;
    outgoing_message message;
    message.tensors.push_back({content.data(), content.size()});
    (void)here_.send(message, {}, [&](const io_result& outcome) {
      if (!outcome.ok()) ++wrong;
      ++sent;
    });
  }
  while (arrived.load() < count || sent.load() < count) std::this_thread::yield();
  EXPECT_EQ(wrong.load(), 0);
}

// What a receiver that does not look takes is bounded; nothing is lost, and the order stays.
TEST_P(pipe_contract, a_receiver_that_does_not_look_holds_up_the_sender_alone) {
  constexpr int count = 400;
  const auto payload = some_bytes(200'000, 5);
  std::vector<operation> sent;
  std::atomic<int> ended{0};
  for (int i = 0; i < count; ++i) {
    outgoing_message message;
    message.metadata = std::to_string(i);
    message.payloads.push_back({payload.data(), payload.size()});
    sent.push_back(here_.send(message, {}, [&](const io_result&) { ++ended; }));
  }
  EXPECT_FALSE(sent.back().wait_for(20ms));
  EXPECT_LE(ended.load(), 90);
  for (int i = 0; i < count; ++i) {
    auto got = receive_from(there_);
    ASSERT_TRUE(got.outcome.ok());
    EXPECT_EQ(got.message.metadata(), std::to_string(i));
  }
  for (auto& each : sent) EXPECT_TRUE(each.wait().ok());
}

TEST_P(pipe_contract, a_send_that_nobody_receives_ends_at_its_deadline_and_is_taken_back) {
  const auto content = some_bytes(1 << 20, 1);
  outgoing_message message;
  message.tensors.push_back({content.data(), content.size()});
  auto sent = here_.send(message, within(30ms));
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  EXPECT_EQ(sent.wait().error.code(), errc::timed_out);
  std::vector<bytes> room;
  auto targets = room_for(come, room);
  EXPECT_EQ(here_.send({"after it", {}, {}}).wait().error.code(), errc::ok);
  ASSERT_TRUE(there_.next(come).wait().ok());  // the first is dropped here, unreceived
  EXPECT_EQ(come.metadata(), "after it");
}

TEST_P(pipe_contract, what_the_sender_has_taken_back_is_not_received) {
  auto content = some_bytes(8 << 20, 1);
  outgoing_message message;
  message.tensors.push_back({content.data(), content.size()});
  auto sent = here_.send(message);
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  sent.cancel();
  EXPECT_EQ(sent.wait().error.code(), errc::cancelled);
  std::fill(content.begin(), content.end(), std::byte{0});  // it is ours again
  std::vector<bytes> room;
  const auto outcome = come.receive(room_for(come, room)).wait();
  EXPECT_FALSE(outcome.ok());
  EXPECT_TRUE(outcome.error.code() == errc::cancelled || outcome.error.code() == errc::closed) << outcome.error.message();
}

TEST_P(pipe_contract, a_receive_that_is_cancelled_leaves_its_memory_alone_afterwards) {
  const auto content = some_bytes(32 << 20, 1);
  for (int i = 0; i < 10; ++i) {
    outgoing_message message;
    message.tensors.push_back({content.data(), content.size()});
    auto sent = here_.send(message);
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
    std::vector<bytes> room;
    auto receiving = come.receive(room_for(come, room));
    std::this_thread::sleep_for(std::chrono::microseconds(i * 200));
    receiving.cancel();
    const auto outcome = receiving.wait();
    if (outcome.ok()) {
      EXPECT_EQ(room.front(), content);
      EXPECT_TRUE(sent.wait().ok());
      continue;
    }
    EXPECT_EQ(outcome.error.code(), errc::cancelled);
    std::fill(room.front().begin(), room.front().end(), std::byte{7});
    EXPECT_EQ(sent.wait().error.code(), errc::cancelled);
    EXPECT_EQ(here_.send({"next", {}, {}}).wait().error.code(), errc::ok);
    ASSERT_TRUE(there_.next(come).wait().ok());
    EXPECT_EQ(come.metadata(), "next");
    EXPECT_EQ(room.front(), bytes(content.size(), std::byte{7}));
  }
}

TEST_P(pipe_contract, a_message_that_is_dropped_ends_its_send) {
  const auto content = some_bytes(1 << 20, 1);
  outgoing_message message;
  message.tensors.push_back({content.data(), content.size()});
  auto sent = here_.send(message);
  {
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
  }
  const auto outcome = sent.wait();
  EXPECT_EQ(outcome.error.code(), errc::cancelled);
  EXPECT_NE(outcome.error.message().find("dropped"), std::string_view::npos) << outcome.error.message();
}

TEST_P(pipe_contract, next_can_be_cancelled_and_timed_out_and_loses_nothing) {
  incoming_message come;
  auto first = there_.next(come);
  first.cancel();
  EXPECT_EQ(first.wait().error.code(), errc::cancelled);
  EXPECT_EQ(there_.next(come, within(10ms)).wait().error.code(), errc::timed_out);
  EXPECT_EQ(there_.next(come, within(-10ms)).wait().error.code(), errc::timed_out);
  EXPECT_TRUE(here_.send({"it", {}, {}}).wait().ok());
  ASSERT_TRUE(there_.next(come).wait().ok());
  EXPECT_EQ(come.metadata(), "it");
}

TEST_P(pipe_contract, a_receive_that_knows_its_targets_can_be_posted_polled_called_back_and_stopped) {
  const auto small = some_bytes(300, 5);
  const auto large = some_bytes((3 << 20) + 7, 6);
  bytes first(small.size());
  bytes second(large.size());
  incoming_message message;
  const std::vector<incoming_target> targets{{first.data(), first.size()}, {second.data(), second.size()}};
  std::atomic<int> called{0};
  auto receiving = there_.receive(message, targets, {}, [&](const io_result& outcome) {
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, small.size() + large.size());
    ++called;
  });
  auto sent = here_.send({"both", {}, {{small.data(), small.size()}, {large.data(), large.size()}}});
  while (!receiving.done()) std::this_thread::yield();  // nobody waits
  EXPECT_EQ(called, 1);
  EXPECT_EQ(first, small);
  EXPECT_EQ(second, large);
  EXPECT_EQ(message.metadata(), "both");
  EXPECT_TRUE(sent.wait().ok());

  // Other tensors than it knows: an error, and the message is there to be received.
  auto wrong = there_.receive(message, {{first.data(), first.size()}});
  auto again = here_.send({"", {}, {{large.data(), large.size()}}});
  EXPECT_EQ(wrong.wait().error.code(), errc::invalid_argument);
  EXPECT_TRUE(message.receive({{second.data(), second.size()}}).wait().ok());
  EXPECT_TRUE(again.wait().ok());

  incoming_message none;
  EXPECT_EQ(there_.receive(none, targets, within(10ms)).wait().error.code(), errc::timed_out);
  auto stopped = there_.receive(none, targets);
  stopped.cancel();
  EXPECT_EQ(stopped.wait().error.code(), errc::cancelled);
  EXPECT_EQ(there_.receive(none, pipe_room()).wait().error.code(), errc::invalid_argument);
  auto last = there_.receive(none, targets);
  here_.close();
  EXPECT_EQ(last.wait().error.code(), errc::closed);
}

TEST_P(pipe_contract, callbacks_may_be_called_at_once) {
  const auto content = some_bytes(1 << 20, 6);
  for (int i = 0; i < 20; ++i) {
    bytes room(content.size());
    incoming_message message;
    std::atomic<int> called{0};
    const auto count = [&](const io_result& outcome) { called += outcome.ok() ? 1 : 100; };
    pipe_operation_options at_once;
    at_once.calls_at_once = true;
    auto receiving = there_.receive(message, {{room.data(), room.size()}}, at_once, count);
    auto sending = here_.send({"", {}, {{content.data(), content.size()}}}, at_once, count);
    if (i % 2 == 0) {
      EXPECT_TRUE(receiving.wait().ok());
      EXPECT_TRUE(sending.wait().ok());
    }
    while (called < 2) std::this_thread::yield();
    EXPECT_EQ(called, 2);
    EXPECT_TRUE(receiving.done() || receiving.wait().ok());
    EXPECT_EQ(room, content);
  }
}

// What comes while nobody polls must not wait for somebody who does.
TEST_P(pipe_contract, what_comes_after_somebody_has_polled_comes_by_itself) {
  for (int i = 0; i < 200; ++i) {
    incoming_message message;
    auto polled = there_.next(message);
    auto sent = here_.send({"polled", {}, {}});
    ASSERT_TRUE(polled.wait().ok());
    std::atomic<bool> called{false};
    incoming_message other;
    auto told = there_.next(other, {}, [&](const io_result& outcome) { called = outcome.ok(); });
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 5));
    auto then = here_.send({"told", {}, {}});
    while (!called) std::this_thread::yield();
    EXPECT_EQ(other.metadata(), "told");
  }
}

TEST_P(pipe_contract, a_receive_posted_beforehand_is_one_operation) {
  const auto content = some_bytes(300'000, 4);
  bytes room(content.size());
  incoming_message message;
  const auto give = [&](const incoming_message& come) -> result<std::vector<incoming_target>> {
    if (come.tensors().size() != 1) return status(errc::invalid_argument, "one tensor was expected");
    return std::vector<incoming_target>{{room.data(), room.size()}};
  };
  auto receiving = there_.receive(message, give);
  auto sent = here_.send({"it", {}, {{content.data(), content.size()}}});
  const auto outcome = receiving.wait();
  ASSERT_TRUE(outcome.ok()) << outcome.error.message();
  EXPECT_EQ(outcome.bytes_done, content.size());
  EXPECT_EQ(room, content);
  EXPECT_EQ(message.metadata(), "it");
  EXPECT_TRUE(sent.wait().ok());

  auto refusing = there_.receive(message, give);
  auto other = here_.send({"none", {}, {}});
  EXPECT_EQ(refusing.wait().error.code(), errc::invalid_argument);
  EXPECT_TRUE(other.wait().ok());
  EXPECT_EQ(there_.receive(message, give, within(10ms)).wait().error.code(), errc::timed_out);
  std::atomic<int> called{0};
  auto stopped = there_.receive(message, give, {}, [&](const io_result&) { ++called; });
  stopped.cancel();
  EXPECT_EQ(stopped.wait().error.code(), errc::cancelled);
  EXPECT_EQ(called.load(), 1);
}

TEST_P(pipe_contract, closing_ends_everything_on_both_ends) {
  const auto content = some_bytes(1 << 20, 1);
  outgoing_message message;
  message.tensors.push_back({content.data(), content.size()});
  auto sent = here_.send(message);
  incoming_message first;
  incoming_message never;
  ASSERT_TRUE(there_.next(first).wait().ok());
  auto waiting_there = there_.next(never);
  incoming_message none;
  auto waiting_here = here_.next(none);
  here_.close();
  EXPECT_EQ(sent.wait().error.code(), errc::closed);
  EXPECT_EQ(waiting_here.wait().error.code(), errc::closed);
  EXPECT_EQ(waiting_there.wait().error.code(), errc::closed);
  std::vector<bytes> room;
  EXPECT_FALSE(first.receive(room_for(first, room)).wait().ok());
  EXPECT_EQ(here_.send({}).wait().error.code(), errc::closed);
  EXPECT_EQ(there_.send({}).wait().error.code(), errc::closed);
  EXPECT_EQ(there_.next(never).wait().error.code(), errc::closed);
}

TEST_P(pipe_contract, what_had_left_before_the_close_arrives) {
  const auto payload = some_bytes(300, 1);
  for (int i = 0; i < 20; ++i) {
    outgoing_message message;
    message.metadata = std::to_string(i);
    message.payloads.push_back({payload.data(), payload.size()});
    ASSERT_TRUE(here_.send(message).wait().ok());
  }
  here_ = penstock::pipe();
  for (int i = 0; i < 20; ++i) {
    auto got = receive_from(there_);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    EXPECT_EQ(got.message.metadata(), std::to_string(i));
  }
  EXPECT_EQ(receive_from(there_).outcome.error.code(), errc::closed);
}

TEST_P(pipe_contract, wrong_targets_are_named_and_the_message_can_still_be_received) {
  const auto content = some_bytes(100'000, 1);
  outgoing_message message;
  message.tensors = {{content.data(), content.size()}, {content.data(), 10}};
  auto sent = here_.send(message);
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  std::vector<bytes> room;
  auto targets = room_for(come, room);
  auto few = targets;
  few.pop_back();
  EXPECT_EQ(come.receive(few).wait().error.code(), errc::invalid_argument);
  auto shorter = targets;
  shorter.back().length = 9;
  const auto outcome = come.receive(shorter).wait();
  EXPECT_EQ(outcome.error.code(), errc::invalid_argument);
  EXPECT_NE(outcome.error.message().find("target 1 has 9 bytes"), std::string_view::npos) << outcome.error.message();
  auto null = targets;
  null.front().memory = nullptr;
  EXPECT_EQ(come.receive(null).wait().error.code(), errc::bad_memory);
  EXPECT_TRUE(come.receive(targets).wait().ok());
  EXPECT_EQ(room.front(), content);
  EXPECT_TRUE(sent.wait().ok());
  EXPECT_EQ(come.receive(targets).wait().error.code(), errc::invalid_argument) << "a second time";
}

TEST_P(pipe_contract, what_is_too_long_or_null_and_payloads_on_a_device_are_refused) {
  outgoing_message message;
  message.metadata = std::string((1 << 20) + 1, 'x');
  EXPECT_EQ(here_.send(message).wait().error.code(), errc::invalid_argument);
  EXPECT_EQ(here_.send({"", {{nullptr, 5}}, {}}).wait().error.code(), errc::bad_memory);
  EXPECT_EQ(here_.send({"", {}, {{nullptr, 5}}}).wait().error.code(), errc::bad_memory);
  const bytes much(33 << 20);
  EXPECT_EQ(here_.send({"", {{much.data(), much.size()}, {much.data(), much.size()}}, {}}).wait().error.code(), errc::invalid_argument);
  const auto device = engine_->allocate("host:0", 4096);
  ASSERT_TRUE(device.ok());
  const auto outcome = here_.send({"", {{device->data(), 4096}}, {}}).wait();
  EXPECT_EQ(outcome.error.code(), errc::unsupported);
  EXPECT_NE(outcome.error.message().find("host:0"), std::string_view::npos) << outcome.error.message();
  EXPECT_TRUE(here_.send({"still there", {}, {}}).wait().ok());
}

TEST_P(pipe_contract, explain_names_every_channel_and_counters_count) {
  const auto plan = here_.explain();
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_EQ(plan->transport, std::string(by_.url).substr(0, by_.url[0] == 'u' ? 4 : 3));
  int chosen = 0;
  std::string name;
  for (const auto& each : plan->sending) {
    EXPECT_TRUE(each.chosen ? each.refusal.empty() : true);
    chosen += each.chosen ? 1 : 0;
    if (each.chosen) name = each.name;
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_NE(by_.name.find(name), std::string::npos) << name;
  const auto content = some_bytes(100'000, 1);
  auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
  EXPECT_TRUE(receive_from(there_).outcome.ok());
  EXPECT_TRUE(sent.wait().ok());
  ASSERT_EQ(here_.stats().size(), 1U);
  EXPECT_EQ(here_.stats().front().name, name);
  EXPECT_EQ(here_.stats().front().sent_bytes, content.size());
  EXPECT_EQ(there_.stats().front().received_bytes, content.size());
}

TEST_P(pipe_contract, what_has_left_has_ended_well_though_the_other_end_goes_as_soon_as_it_has_it) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      auto made = context_->connect(listener_.url());
      ASSERT_TRUE(made.ok());
      incoming_message come;
      if (made->next(come).wait().ok() && come.metadata() == "stop") stop.store(true);
    }
  });
  for (int i = 0; i <= 1000; ++i) {
    penstock::pipe mine;
    ASSERT_TRUE(listener_.accept(mine).wait().ok());
    const auto outcome = mine.send({i < 1000 ? "go" : "stop", {}, {}}).wait();
    EXPECT_TRUE(outcome.ok()) << i << ": " << outcome.error.message();
  }
  other.join();
}

TEST_P(pipe_contract, a_thousand_pipes_at_once) {
  const std::size_t count = GetParam().channels == by_ucx().channels ? 50 : 500;  // of two ends each; a worker of UCX's has ten descriptors
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<penstock::pipe> mine(count);
  std::vector<penstock::pipe> theirs;
  for (std::size_t i = 0; i < count; ++i) {
    auto accepted = listener_.accept(mine[i]);
    auto made = context_->connect(listener_.url());
    ASSERT_TRUE(made.ok()) << made.error().message();
    theirs.push_back(*std::move(made));
    ASSERT_TRUE(accepted.wait().ok());
  }
  std::vector<operation> sent;
  const auto content = some_bytes(20'000, 1);
  for (std::size_t i = 0; i < count; ++i) sent.push_back(theirs[i].send({std::to_string(i), {}, {{content.data(), content.size()}}}));
  for (std::size_t i = count; i-- > 0;) {
    auto got = receive_from(mine[i]);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    EXPECT_EQ(got.message.metadata(), std::to_string(i));
    EXPECT_EQ(got.tensors.front(), content);
  }
  for (auto& each : sent) EXPECT_TRUE(each.wait().ok());
}

// The engine, the context and the listener may go first; and pipes with everything still under way.
TEST_P(pipe_contract, anything_may_be_dropped_at_any_time) {
  const auto content = some_bytes(4 << 20, 1);
  for (int i = 0; i < 30; ++i) {
    auto made = engine::create(engine_options{});
    ASSERT_TRUE(made.ok());
    result<pipe_context> context = context_of(by_, *made);
    auto listener = context->listen(by_.url);
    ASSERT_TRUE(listener.ok());
    penstock::pipe a;
    auto accepted = listener->accept(a);
    auto b = context->connect(listener->url());
    ASSERT_TRUE(b.ok() && accepted.wait().ok());
    made = status(errc::closed, "gone");
    context = status(errc::closed, "gone");
    listener = status(errc::closed, "gone");
    auto sent = a.send({"", {}, {{content.data(), content.size()}}});
    auto back = b->send({"", {}, {{content.data(), content.size()}}});
    incoming_message come;
    std::vector<bytes> room;
    operation receiving;
    if (i % 3 > 0) {
      ASSERT_TRUE(b->next(come).wait().ok());
      receiving = come.receive(room_for(come, room));
    }
    if (i % 2 == 0) a = penstock::pipe();
    b = status(errc::closed, "gone");
    (void)sent.wait();
    EXPECT_EQ(back.wait().error.code(), errc::closed);
    (void)receiving.wait();
    come = incoming_message();
  }
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_contract, ::testing::ValuesIn(each_channel()), name_of_way);

// --- listeners

class pipe_listeners : public pipe_fixture {
 protected:
  pipe_listeners() : pipe_fixture({"unix", "unix:", {}}) {}
};

TEST_F(pipe_listeners, wrong_addresses_are_named) {
  for (const std::string url :
       {"", "unix", "unix:name", "tcp://", "tcp://host", "tcp://127.0.0.1:x", "tcp://127.0.0.1:70000", "http://x:1"}) {
    for (const auto& error : {context_->listen(url).error(), context_->connect(url).error()}) {
      EXPECT_EQ(error.code(), errc::invalid_argument) << url;
      EXPECT_NE(error.message().find(url), std::string_view::npos) << error.message();
    }
  }
  EXPECT_EQ(context_->listen("unix:/" + std::string(200, 'x')).error().code(), errc::invalid_argument);
  EXPECT_EQ(context_->listen("tcp://0.0.0.0:0").error().code(), errc::permission_denied);
  EXPECT_EQ(context_->listen("unix:/no/such/folder/socket").error().code(), errc::not_found);
  EXPECT_FALSE(context_->connect("unix:@nobody-listens-here-" + std::to_string(::testing::UnitTest::GetInstance()->random_seed())).ok());
  EXPECT_FALSE(context_->listen(listener_.url()).ok()) << "in use";
}

TEST_F(pipe_listeners, a_channel_that_there_is_none_of_is_named) {
  const auto made = pipe_context::create(*engine_, {{"basic", "carrier-pigeon"}});
  EXPECT_EQ(made.error().code(), errc::invalid_argument);
  EXPECT_NE(made.error().message().find("carrier-pigeon"), std::string_view::npos) << made.error().message();
}

TEST_F(pipe_listeners, a_channel_that_is_named_twice_is_named) {
  const auto made = pipe_context::create(*engine_, {{"cma", "basic", "cma"}});
  EXPECT_EQ(made.error().code(), errc::invalid_argument);
  EXPECT_NE(made.error().message().find("\"cma\" is named twice"), std::string_view::npos) << made.error().message();
}

std::vector<std::string> names_of(const std::vector<channel_choice>& choices) {
  std::vector<std::string> names;
  for (const auto& each : choices) names.push_back(each.name);
  return names;
}

std::string chosen_of(const std::vector<channel_choice>& choices) {
  const auto found = std::find_if(choices.begin(), choices.end(), [](const auto& each) { return each.chosen; });
  return found == choices.end() ? "" : found->name;
}

TEST_F(pipe_listeners, of_the_channels_that_both_ends_name_the_receivers_first_is_chosen) {
  PENSTOCK_SKIP_WITHOUT_READING_MEMORY;
  struct {
    std::vector<std::string> here, there;
    std::string to_here, to_there;
  } const cases[] = {{{}, {}, "xth", "xth"},
                     {{"basic", "cma", "xth"}, {"basic", "cma", "xth"}, "basic", "basic"},
                     {{"cma", "xth", "basic"}, {"cma", "xth", "basic"}, "cma", "cma"},
                     {{"xth", "cma", "basic"}, {"basic", "xth"}, "xth", "basic"},
                     {{"basic", "cma"}, {"xth", "cma", "basic"}, "basic", "cma"}};
  const auto content = some_bytes(100'000, 1);
  for (const auto& [at_here, at_there, to_here, to_there] : cases) {
    SCOPED_TRACE(to_here + " and " + to_there);
    const auto listens = pipe_context::create(*engine_, {at_here});
    const auto connects = pipe_context::create(*engine_, {at_there});
    ASSERT_TRUE(listens.ok() && connects.ok());
    auto listener = listens->listen("unix:");
    ASSERT_TRUE(listener.ok());
    penstock::pipe here;
    auto accepted = listener->accept(here);
    auto there = connects->connect(listener->url());
    ASSERT_TRUE(there.ok() && accepted.wait().ok());
    for (int i = 0; i < 2; ++i) {  // the second goes by what is remembered
      auto sent = here.send({"", {}, {{content.data(), content.size()}}});
      EXPECT_EQ(receive_from(*there).tensors.front(), content);
      auto back = there->send({"", {}, {{content.data(), content.size()}}});
      EXPECT_EQ(receive_from(here).tensors.front(), content);
      EXPECT_TRUE(sent.wait().ok() && back.wait().ok());
    }
    const auto mine = here.explain();
    const auto theirs = there->explain();
    ASSERT_TRUE(mine.ok() && theirs.ok());
    for (const auto& [plan, sends, receives] : {std::tuple(*mine, to_there, to_here), std::tuple(*theirs, to_here, to_there)}) {
      EXPECT_EQ(chosen_of(plan.sending), sends);
      EXPECT_EQ(chosen_of(plan.receiving), receives);
      ASSERT_EQ(plan.received.size(), 1U);
      EXPECT_EQ(chosen_of(plan.received.front().channels), receives);
    }
    if (!at_there.empty()) {
      EXPECT_EQ(names_of(theirs->receiving), at_there);
      const auto sending = names_of(mine->sending);
      EXPECT_EQ(sending.front(), to_there) << "as the receiver has them";
      EXPECT_EQ(sending.size(), at_here.size()) << "and the others behind";
    }
    for (const auto& each : here.stats()) {
      EXPECT_EQ(each.sent_tensors, each.name == to_there ? 2U : 0U) << each.name;
      EXPECT_EQ(each.received_tensors, each.name == to_here ? 2U : 0U) << each.name;
    }
  }
}

TEST_F(pipe_listeners, ends_without_a_common_channel_say_so) {
  auto only = pipe_context::create(*engine_, {{"cma"}});
  ASSERT_TRUE(only.ok());
  auto tcp = pipe_context::create(*engine_, {{"basic"}});
  ASSERT_TRUE(tcp.ok());
  auto listener = tcp->listen("tcp://127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  penstock::pipe accepted;
  auto accepting = listener->accept(accepted);
  auto made = only->connect(listener->url());
  ASSERT_TRUE(made.ok() && accepting.wait().ok());
  const auto plan = made->explain();
  EXPECT_EQ(plan.error().code(), errc::unsupported);
  EXPECT_NE(plan.error().message().find("cma"), std::string_view::npos) << plan.error().message();
  EXPECT_FALSE(accepted.send({}).wait().ok());
}

TEST_F(pipe_listeners, accept_can_be_cancelled_timed_out_and_closed) {
  penstock::pipe never;
  auto first = listener_.accept(never);
  first.cancel();
  EXPECT_EQ(first.wait().error.code(), errc::cancelled);
  EXPECT_EQ(listener_.accept(never, within(10ms)).wait().error.code(), errc::timed_out);
  auto waiting = listener_.accept(never);
  listener_ = pipe_listener();
  EXPECT_EQ(waiting.wait().error.code(), errc::closed);
  EXPECT_EQ(listener_.accept(never).wait().error.code(), errc::closed);
  EXPECT_TRUE(here_.send({"goes on", {}, {}}).wait().ok());
  EXPECT_TRUE(receive_from(there_).outcome.ok());
}

}  // namespace
}  // namespace penstock::testing
