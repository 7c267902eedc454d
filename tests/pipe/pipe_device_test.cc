// Tensors in device memory: from and to every kind of memory, over each channel. On the first GPU if there is one, else on the host device.
#include <atomic>
#include <thread>

#include "channel/inbox.hpp"
#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "pipe/faulty_doors.hpp"
#include "pipe/pipe_fixture.hpp"
#include "support/open_descriptors.hpp"

namespace penstock::testing::pipe_device {
namespace {

using namespace std::chrono_literals;

class pipe_device : public ::testing::TestWithParam<way> {
 protected:
  pipe_device() : house_({}, doors_.seams) {
    if (!missing_for(GetParam()).empty()) return;
    auto context = pipe_context::create(house_.engine(), {GetParam().channels});
    EXPECT_TRUE(context.ok()) << told(context.error());
    context_.emplace(*std::move(context));
    listener_ = *context_->listen(GetParam().url);
    auto accepted = listener_.accept(here_);
    there_ = *context_->connect(listener_.url());
    EXPECT_TRUE(accepted.wait().ok());
  }
  void SetUp() override { PENSTOCK_SKIP_WITHOUT(GetParam()); }
  guarded_memory memory(memory_place place, std::size_t length, std::size_t shift = 0) { return {house_, place, length, shift}; }
  // Pairs of pipes, so many times; nothing of them is left.
  void open_and_drop_at_work(int times);

  // Holds a stream of the device until it is let go.
  struct held_stream {
    explicit held_stream(device::session& of) : session(of), flag(of, 4096) {
      flag.fill(std::byte{0});
      on = *session.make_stream();
      PENSTOCK_EXPECT_OK(session.wait_value(on, word(), 1));
    }
    ~held_stream() {
      let_go();
      PENSTOCK_EXPECT_OK(session.synchronize(on));
      PENSTOCK_EXPECT_OK(session.destroy_stream(on));
    }
    void let_go() { std::atomic_ref(*word()).store(1, std::memory_order_release); }
    std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(flag.data()); }
    device::session& session;
    pinned_memory flag;
    device::stream on = nullptr;
  };

  // Memory of a GPU takes RDMA, and a UCX that knows CUDA.
  faulty_doors doors_{GetParam().name != "tcp_gdr"};
  open_house house_;
  std::optional<pipe_context> context_;
  pipe_listener listener_;
  penstock::pipe here_;
  penstock::pipe there_;
};

constexpr std::size_t sizes[] = {1, 4096, 16 * kib + 1, mib + 3, 21 * mib + 77};

TEST_P(pipe_device, tensors_go_from_and_to_every_kind_of_memory) {
  for (const auto from : {memory_place::pageable, memory_place::device}) {
    for (const auto to : {memory_place::pageable, memory_place::device}) {
      for (const auto size : sizes) {
        SCOPED_TRACE(to_string(from) + " to " + to_string(to) + ", " + std::to_string(size));
        const auto content = some_bytes(size, 3);
        auto source = memory(from, size, 5);
        source.fill(content);
        auto target = memory(to, size, 3);
        auto sent = here_.send({"", {}, {{source.data(), size, "t"}}});
        incoming_message come;
        ASSERT_TRUE(there_.next(come).wait().ok());
        EXPECT_EQ(come.tensors().front().device, from == memory_place::device ? house_.device() : "host");
        const auto outcome = come.receive({{target.data(), size}}).wait();
        ASSERT_TRUE(outcome.ok()) << told(outcome.error);
        EXPECT_EQ(outcome.bytes_done, size);
        target.expect(content);
        const auto left = sent.wait();
        EXPECT_TRUE(left.ok()) << told(left.error);
        EXPECT_EQ(left.bytes_done, size);
      }
    }
  }
}

TEST_P(pipe_device, a_message_may_have_tensors_of_both_kinds_and_empty_ones) {
  const auto first = some_bytes(3 * mib + 1, 1);
  const auto second = some_bytes(2 * mib + 7, 2);
  const auto third = some_bytes(100, 3);
  auto on_device = memory(memory_place::device, first.size());
  on_device.fill(first);
  auto small = memory(memory_place::device, third.size());
  small.fill(third);
  auto sent =
      there_.send({"", {}, {{on_device.data(), first.size()}, {second.data(), second.size()}, {nullptr, 0}, {small.data(), third.size()}}});
  auto target = memory(memory_place::device, second.size());
  bytes room(first.size());
  bytes room_for_third(third.size());
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  const auto outcome =
      come.receive({{room.data(), room.size()}, {target.data(), second.size()}, {nullptr, 0}, {room_for_third.data(), third.size()}})
          .wait();
  ASSERT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_EQ(room, first);
  target.expect(second);
  EXPECT_EQ(room_for_third, third);
  EXPECT_TRUE(sent.wait().ok());
}

TEST_P(pipe_device, a_tensor_is_sent_after_what_its_stream_had_and_later_messages_wait_for_it) {
  const auto content = some_bytes(mib, 1);
  auto source = memory(memory_place::device, mib);
  pinned_memory written(house_.session(), mib);
  std::memcpy(written.data(), content.data(), mib);
  held_stream held(house_.session());
  PENSTOCK_EXPECT_OK(house_.session().copy(source.data(), written.data(), mib, held.on));
  auto sent = here_.send({"first", {}, {{source.data(), mib, "", held.on}}});
  auto second = here_.send({"second", {}, {}});
  incoming_message come;
  auto next = there_.next(come);
  EXPECT_FALSE(next.wait_for(50ms));
  EXPECT_FALSE(second.done());
  held.let_go();
  ASSERT_TRUE(next.wait().ok());
  EXPECT_EQ(come.metadata(), "first");
  auto target = memory(memory_place::device, mib);
  EXPECT_TRUE(come.receive({{target.data(), mib}}).wait().ok());
  target.expect(content);
  EXPECT_TRUE(sent.wait().ok());
  EXPECT_TRUE(second.wait().ok());
}

TEST_P(pipe_device, a_target_is_written_after_what_its_stream_had) {
  const auto content = some_bytes(2 * mib + 5, 1);
  auto target = memory(memory_place::device, content.size());
  auto target_of_small = memory(memory_place::device, 10);
  pinned_memory old(house_.session(), content.size());
  held_stream held(house_.session());
  PENSTOCK_EXPECT_OK(house_.session().copy(target.data(), old.data(), content.size(), held.on));
  auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
  auto small = here_.send({"", {}, {{content.data(), 10}}});
  incoming_message come;
  incoming_message come_small;
  ASSERT_TRUE(there_.next(come).wait().ok());
  ASSERT_TRUE(there_.next(come_small).wait().ok());
  auto receiving = come.receive({{target.data(), content.size(), held.on}});
  auto receiving_small = come_small.receive({{target_of_small.data(), 10, held.on}});
  EXPECT_FALSE(receiving.wait_for(50ms));
  EXPECT_FALSE(receiving_small.done());
  held.let_go();
  EXPECT_TRUE(receiving.wait().ok());
  EXPECT_TRUE(receiving_small.wait().ok());
  target.expect(content);
  target_of_small.expect(bytes(content.begin(), content.begin() + 10));
  EXPECT_TRUE(sent.wait().ok());
  EXPECT_TRUE(small.wait().ok());
}

TEST_P(pipe_device, what_waits_for_a_stream_can_be_cancelled_and_times_out) {
  auto source = memory(memory_place::device, mib);
  held_stream held(house_.session());
  auto sent = here_.send({"", {}, {{source.data(), mib, "", held.on}}});
  auto late = here_.send({"", {}, {{source.data(), mib, "", held.on}}}, within(20ms));
  sent.cancel();
  EXPECT_EQ(sent.wait().error.code(), errc::cancelled);
  EXPECT_EQ(late.wait().error.code(), errc::timed_out);
  const auto content = some_bytes(mib, 1);
  auto good = here_.send({"", {}, {{content.data(), mib}}});
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  auto target = memory(memory_place::device, mib);
  auto receiving = come.receive({{target.data(), mib, held.on}}, within(20ms));
  EXPECT_EQ(receiving.wait().error.code(), errc::timed_out);
  EXPECT_EQ(good.wait().error.code(), errc::timed_out);
  held.let_go();
}

TEST_P(pipe_device, nobody_need_wait_and_many_pass_through_little_memory) {
  constexpr std::size_t count = 60;
  const auto content = some_bytes(3 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  std::vector<guarded_memory> targets;
  for (std::size_t i = 0; i < count; ++i)
    targets.push_back(memory(i % 3 == 0 ? memory_place::pageable : memory_place::device, content.size()));
  std::atomic<std::size_t> ended{0};
  std::atomic<int> wrong{0};
  std::vector<incoming_message> come(count);
  for (std::size_t i = 0; i < count; ++i) {
    (void)there_.receive(
        come[i],
        [&, i](const incoming_message&) -> result<std::vector<incoming_target>> {
          return std::vector<incoming_target>{{targets[i].data(), targets[i].size()}};
        },
        {},
        [&](const io_result& outcome) {
          if (!outcome.ok()) ++wrong;
          ++ended;
        });
  }
  for (std::size_t i = 0; i < count; ++i) {
    (void)here_.send({"", {}, {{source.data(), content.size()}}}, {}, [&](const io_result& outcome) {
      if (!outcome.ok()) ++wrong;
      ++ended;
    });
  }
  while (ended.load() < 2 * count) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(wrong.load(), 0);
  for (auto& each : targets) each.expect(content);
  EXPECT_LE(house_.engine().stats().pinned_bytes, 2 * staging::landing::most_bytes + channel::pipe_inbox::bytes);
}

TEST_P(pipe_device, stopped_dropped_and_closed_at_any_moment) {
  const auto content = some_bytes(5 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, content.size());
  for (int round = 0; round < 40; ++round) {
    auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
    auto receiving = come.receive({{target.data(), content.size()}});
    for (int i = 0; i < round * 20; ++i) std::this_thread::yield();
    (round % 2 == 0 ? sent : receiving).cancel();
    const auto sending = sent.wait();
    const auto received = receiving.wait();
    EXPECT_TRUE(sending.ok() || sending.error.code() == errc::cancelled) << told(sending.error);
    EXPECT_TRUE(received.ok() || received.error.code() == errc::cancelled || received.error.code() == errc::closed) << told(received.error);
    if (received.ok()) {
      EXPECT_EQ(received.bytes_done, content.size());
    }
  }
  auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
  {
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
  }
  EXPECT_EQ(sent.wait().error.code(), errc::cancelled) << "dropped";
  auto last = here_.send({"", {}, {{source.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  auto receiving = come.receive({{target.data(), content.size()}});
  there_.close();
  for (const auto& outcome : {receiving.wait(), last.wait()}) {
    EXPECT_TRUE(outcome.ok() || outcome.error.code() == errc::closed) << told(outcome.error);
  }
}

TEST_P(pipe_device, every_call_of_the_device_may_fail) {
  const auto content = some_bytes(3 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, content.size());
  bool went_on = false;
  for (std::uint64_t nth = 1; nth <= 60 && !went_on; ++nth) {
    SCOPED_TRACE(nth);
    doors_.driver->fail_any(nth, status(errc::device, "made to fail"));
    auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
    incoming_message come;
    auto next = there_.next(come);
    while (!next.done() && !(sent.done() && !sent.wait().ok())) std::this_thread::yield();
    next.cancel();
    io_result received{0, status(errc::device, "it never came")};
    if (next.wait().ok()) received = come.receive({{target.data(), content.size()}}).wait();
    come = {};  // which could be received anew where that had not begun
    const auto sending = sent.wait();
    doors_.driver->clear_faults();
    EXPECT_EQ(sending.ok(), received.ok()) << told(sending.error) << "; " << told(received.error);
    if (!received.ok()) {
      const auto both = told(received.error) + "; " + told(sending.error);
      EXPECT_NE(both.find("made to fail"), std::string::npos) << both;
    }
    went_on = received.ok() && nth > 40;
  }
  auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  EXPECT_TRUE(come.receive({{target.data(), content.size()}}).wait().ok());
  EXPECT_TRUE(sent.wait().ok());
  target.expect(content);
}

TEST_P(pipe_device, explain_tells_the_channel_of_each_pair_and_stats_count_it) {
  const auto content = some_bytes(mib, 1);
  auto source = memory(memory_place::device, mib);
  auto target = memory(memory_place::device, mib);
  auto sent = here_.send({"", {}, {{source.data(), mib}}});
  incoming_message come;
  ASSERT_TRUE(there_.next(come).wait().ok());
  ASSERT_TRUE(come.receive({{target.data(), mib}}).wait().ok());
  ASSERT_TRUE(sent.wait().ok());
  const auto plan = there_.explain();
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->received.size(), 1U);
  const auto& route = plan->received.front();
  EXPECT_EQ(route.from, house_.device());
  EXPECT_EQ(route.to, house_.device());
  std::string chosen;
  for (const auto& each : route.channels) {
    if (each.chosen) chosen = each.name;
    if (each.chosen || chosen.empty()) {
      EXPECT_EQ(each.chosen, each.refusal.empty()) << each.name << ": " << each.refusal;
    }
  }
  const std::string name = GetParam().name;
  EXPECT_EQ(chosen, name == "unix_xth" ? "cuda_xth" : name == "tcp_mpt" ? "mpt" : name == "tcp_gdr" ? "cuda_gdr" : "cuda_basic");
  ASSERT_EQ(there_.stats().size(), 1U);
  EXPECT_EQ(there_.stats().front().name, chosen);
  EXPECT_EQ(there_.stats().front().received_bytes, mib);
  EXPECT_EQ(here_.stats().front().sent_bytes, mib);
  EXPECT_EQ(here_.stats().front().name, chosen);
}

void pipe_device::open_and_drop_at_work(int times) {
  auto source = memory(memory_place::device, 2 * mib);
  auto target = memory(memory_place::device, 2 * mib);
  std::size_t files = 0;
  faulty_driver::live_counts live;
  for (int i = 0; i < times; ++i) {
    penstock::pipe mine;
    auto accepted = listener_.accept(mine);
    auto theirs = *context_->connect(listener_.url());
    ASSERT_TRUE(accepted.wait().ok());
    auto sent = mine.send({"", {}, {{source.data(), source.size()}}});
    incoming_message come;
    ASSERT_TRUE(theirs.next(come).wait().ok());
    auto receiving = come.receive({{target.data(), target.size()}});
    if (i % 2 == 0) {
      EXPECT_TRUE(receiving.wait().ok());
    }
    (i % 3 == 0 ? mine : theirs).close();
    (void)sent.wait();
    (void)receiving.wait();
    if (i == 20) {
      files = open_descriptors();
      live = doors_.driver->live();
    }
  }
  const auto settled = [&] {
    const auto now = doors_.driver->live();
    return open_descriptors() <= files + 4 && now.events <= live.events && now.streams <= live.streams &&
           now.allocations <= live.allocations;
  };
  const auto until = std::chrono::steady_clock::now() + 20s;  // the reactor lets go of the last ones
  while (!settled() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_LE(open_descriptors(), files + 4);
  EXPECT_LE(doors_.driver->live().events, live.events);
  EXPECT_LE(doors_.driver->live().streams, live.streams);
  EXPECT_LE(doors_.driver->live().allocations, live.allocations);
  EXPECT_LE(house_.engine().stats().pinned_bytes, 96 * mib);
}

TEST_P(pipe_device, hundreds_of_pipes_opened_and_dropped_at_work_leave_nothing) { open_and_drop_at_work(150); }
TEST_P(pipe_device, long_a_thousand_pipes_opened_and_dropped_at_work_leave_nothing) { open_and_drop_at_work(500); }

// Two ends in one process, which may use these channels.
class pipe_devices : public ::testing::Test {
 protected:
  void connect(const std::vector<std::string>& channels) {
    const pipe_context context = *pipe_context::create(house.engine(), {channels});
    auto listener = *context.listen("unix:");
    auto accepted = listener.accept(here);
    there = *context.connect(listener.url());
    ASSERT_TRUE(accepted.wait().ok());
  }
  open_house house;
  penstock::pipe here;
  penstock::pipe there;
};

// As where pinned memory of both is wanted rather than a copy from device to device.
TEST_F(pipe_devices, a_channel_that_the_receiver_names_first_carries_every_tensor) {
  ASSERT_NO_FATAL_FAILURE(connect({"cuda_basic", "basic", "cuda_xth"}));
  guarded_memory source(house, memory_place::device, mib);
  guarded_memory target(house, memory_place::device, mib);
  for (unsigned i = 1; i <= 3; ++i) {
    const auto content = some_bytes(mib, i);
    source.fill(content);
    auto sent = here.send({"", {}, {{source.data(), mib}}});
    incoming_message come;
    ASSERT_TRUE(there.receive(come, {{target.data(), mib}}).wait().ok());
    ASSERT_TRUE(sent.wait().ok());
    target.expect(content);
  }
  ASSERT_EQ(there.stats().size(), 1U);
  EXPECT_EQ(there.stats().front().name, "cuda_basic");
  EXPECT_EQ(there.stats().front().received_tensors, 3U);
  const auto plan = *there.explain();
  ASSERT_EQ(plan.received.size(), 1U);
  ASSERT_EQ(plan.received.front().channels.size(), 2U);
  EXPECT_EQ(plan.received.front().channels.front().name, "cuda_basic");
  EXPECT_TRUE(plan.received.front().channels.front().chosen);
  EXPECT_EQ(plan.received.front().channels.back().name, "cuda_xth");
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_device,
                         ::testing::Values(way{"unix_xth", "unix:", {}}, way{"unix_basic", "unix:", {"basic", "cuda_basic"}},
                                           way{"tcp_basic", "tcp://127.0.0.1:0", {"basic", "cuda_basic"}},
                                           way{"tcp_mpt", "tcp://127.0.0.1:0", {}},
                                           way{"tcp_gdr", "tcp://127.0.0.1:0", {"ucx", "cuda_gdr"}}),
                         name_of_way);

TEST_F(pipe_devices, without_a_channel_for_such_memory_the_receiver_is_told_why) {
  ASSERT_NO_FATAL_FAILURE(connect({"basic"}));
  guarded_memory source(house, memory_place::device, mib);
  auto sent = here.send({"", {}, {{source.data(), mib}}});
  incoming_message come;
  ASSERT_TRUE(there.next(come).wait().ok());
  bytes room(mib);
  const auto outcome = come.receive({{room.data(), room.size()}}).wait();
  EXPECT_EQ(outcome.error.code(), errc::unsupported);
  EXPECT_NE(outcome.error.message().find("no channel can transfer from the peer's " + house.device()), std::string_view::npos)
      << told(outcome.error);
  come = {};
  EXPECT_FALSE(sent.wait().ok());
}

}  // namespace
}  // namespace penstock::testing::pipe_device
