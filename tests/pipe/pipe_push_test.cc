// Tensors that the sender's device writes into the targets of receives posted before, between processes.
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "pipe/device_process_fixture.hpp"
#include "pipe/faulty_peer.hpp"
#include "pipe/server.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

class pipe_push : public pipe_device_processes {
 protected:
  struct posted {
    incoming_message message;
    operation receiving;
  };
  void post(posted& into, guarded_memory& target, const pipe_operation_options& options = {}, io_callback callback = {}) {
    into.receiving =
        pipe_.receive(into.message, std::vector<incoming_target>{{target.data(), target.size()}}, options, std::move(callback));
  }
  // Where the peer posts: what it has posted is known here.
  void start_posted(const std::string& step, std::size_t size) {
    start(step, size);
    ASSERT_EQ(peer_->line(), "there");
    ASSERT_TRUE(pipe_.explain().ok());
    incoming_message told_so;
    if (step == "posts") {
      ASSERT_TRUE(pipe_.next(told_so).wait().ok());
    }
  }
  // To a peer that answers. What has been posted before is known there when it hears this.
  void ask() const { ASSERT_TRUE(pipe_.send({"answer"}).wait().ok()); }
  void make_what_was_posted_known() const {
    ASSERT_TRUE(pipe_.send({"come?"}).wait().ok());
    ASSERT_EQ(peer_->line(), "come");
  }
  [[nodiscard]] status receive_nothing() const {
    incoming_message none;
    return pipe_.next(none).wait().error;
  }
  static void until(const std::function<bool()>& holds) {
    const auto late = std::chrono::steady_clock::now() + 20s;
    while (!holds() && std::chrono::steady_clock::now() < late) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(holds());
  }
  [[nodiscard]] channel_stats stats_of(const std::string& name) const {
    for (const auto& each : pipe_.stats()) {
      if (each.name == name) return each;
    }
    return {};
  }
};

TEST_P(pipe_push, tensors_go_straight_into_receives_that_were_posted) {
  for (const std::size_t size : {5 * mib + 1, std::size_t{100}}) {
    SCOPED_TRACE(size);
    start_posted("posts", size);
    const auto content = some_bytes(size, 3);
    auto source = on_device(size);
    source.fill(content);
    auto target = on_device(size);
    for (int i = 0; i < 6; ++i) {
      target.fill(bytes(size, std::byte{0}));
      posted back;
      post(back, target);
      auto sent = pipe_.send({std::to_string(i), {}, {{source.data(), size}}});
      const auto got = back.receiving.wait();
      ASSERT_TRUE(got.ok()) << told(got.error);
      EXPECT_EQ(got.bytes_done, size);
      EXPECT_EQ(back.message.metadata(), std::to_string(i));
      target.expect(content);
      EXPECT_EQ(sent.wait().bytes_done, size);
      EXPECT_EQ(back.message.receive({{target.data(), size}}).wait().error.code(), errc::invalid_argument) << "it was received";
    }
    const auto stats = stats_of("cuda_ipc");
    EXPECT_EQ(stats.sent_tensors, 6U);
    EXPECT_EQ(stats.sent_bytes, 6 * size);
    EXPECT_EQ(stats.received_bytes, 6 * size);
    EXPECT_EQ(stats.pushed_tensors, 12U);
    EXPECT_EQ(chosen(), "cuda_ipc");
    pipe_.close();
    expect_nothing_mapped();
  }
}

TEST_P(pipe_push, nothing_is_pushed_to_who_would_rather_have_it_another_way) {
  constexpr std::size_t size = 2 * mib;
  context_.emplace(*pipe_context::create(house_.engine(), {{"cuda_basic", "cuda_ipc"}}));
  listener_ = *context_->listen("unix:");
  start_posted("answers", size);
  auto target = on_device(size);
  posted back;
  post(back, target);
  ask();
  const auto got = back.receiving.wait();
  ASSERT_TRUE(got.ok()) << told(got.error);
  target.expect(bytes(size, std::byte{42}));
  EXPECT_EQ(chosen(), "cuda_basic");
  EXPECT_EQ(stats_of("cuda_basic").received_tensors, 1U);
  EXPECT_EQ(stats_of("cuda_basic").pushed_tensors, 0U);
  EXPECT_EQ(stats_of("cuda_ipc").received_tensors, 0U);
}

TEST_P(pipe_push, several_tensors_of_a_message_and_messages_that_do_not_fit) {
  constexpr std::size_t size = 3 * mib;
  start_posted("answers with two", size);
  const bytes content(size / 2, std::byte{42});
  auto one = on_device(size / 2);
  auto other = on_device(size / 2);
  incoming_message come;
  auto both = pipe_.receive(come, std::vector<incoming_target>{{one.data(), one.size()}, {other.data(), other.size()}});
  ask();
  const auto got = both.wait();
  ASSERT_TRUE(got.ok()) << told(got.error);
  EXPECT_EQ(got.bytes_done, size);
  one.expect(content);
  other.expect(content);
  EXPECT_EQ(stats_of("cuda_ipc").pushed_tensors, 2U);

  // As many bytes, and one tensor less: it can still be received.
  auto whole = on_device(size);
  posted wrong;
  post(wrong, whole);
  ask();
  EXPECT_EQ(wrong.receiving.wait().error.code(), errc::invalid_argument);
  one.fill(bytes(one.size(), std::byte{0}));
  const auto again = wrong.message.receive({{one.data(), one.size()}, {other.data(), other.size()}}).wait();
  ASSERT_TRUE(again.ok()) << told(again.error);
  one.expect(content);
  EXPECT_EQ(stats_of("cuda_ipc").pushed_tensors, 2U);
}

TEST_P(pipe_push, nobody_waits) {
  constexpr std::size_t size = 100'000;
  start_posted("posts", size);
  const auto content = some_bytes(size, 5);
  auto source = on_device(size);
  source.fill(content);
  auto target = on_device(size);
  posted back;
  std::atomic<int> ends{0};
  const auto ended = [&](const io_result& outcome) {
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    ++ends;
  };
  for (int i = 1; i <= 10; ++i) {
    post(back, target, {}, ended);
    auto sent = pipe_.send({"", {}, {{source.data(), size}}}, {}, ended);
    until([&] { return ends == 2 * i && back.receiving.done() && sent.done(); });
    target.expect(content);
  }
  EXPECT_GT(stats_of("cuda_ipc").pushed_tensors, 0U);
}

TEST_P(pipe_push, a_receive_that_was_cancelled_is_not_written_to_and_the_next_gets_the_message) {
  constexpr std::size_t size = 1 * mib;
  start_posted("answers", size);
  const bytes before(size, std::byte{7});
  const bytes content(size, std::byte{42});
  std::deque<guarded_memory> targets;
  for (int i = 0; i < 4; ++i) {
    targets.push_back(on_device(size));
    targets.back().fill(before);
  }
  std::deque<posted> waiting(4);
  for (std::size_t i = 0; i < 3; ++i) post(waiting[i], targets[i]);
  make_what_was_posted_known();
  waiting[0].receiving.cancel();
  EXPECT_EQ(waiting[0].receiving.wait().error.code(), errc::cancelled);
  post(waiting[3], targets[3]);
  for (int i = 0; i < 3; ++i) ask();
  for (std::size_t i = 1; i <= 3; ++i) {
    const auto got = waiting[i].receiving.wait();
    ASSERT_TRUE(got.ok()) << told(got.error);
    EXPECT_EQ(waiting[i].message.metadata(), std::to_string(i));
    targets[i].expect(content);
  }
  targets[0].expect(before);
}

TEST_P(pipe_push, a_deadline_holds_while_nobody_sends) {
  start_posted("answers", mib);
  auto target = on_device(mib);
  const bytes before(mib, std::byte{7});
  target.fill(before);
  posted late;
  post(late, target, within(50ms));
  EXPECT_EQ(late.receiving.wait().error.code(), errc::timed_out);
  ask();
  posted next;
  auto other = on_device(mib);
  post(next, other);
  EXPECT_TRUE(next.receiving.wait().ok());
  target.expect(before);
}

// Whatever moment it is, what was posted ends within a moment, right or not, and is not written to after that.
TEST_P(pipe_push, one_that_is_killed_or_let_go_of_while_it_pushes_writes_no_more) {
  constexpr std::size_t size = 64 * mib;
  const bytes content(size, std::byte{42});
  const bytes after(size, std::byte{9});
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    start_posted("answers", size);
    auto target = on_device(size);
    posted into;
    post(into, target);
    ask();
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * (i / 2)));
    if (i % 2 == 0) {
      peer_->kill();
    } else {
      pipe_.close();
    }
    const auto got = into.receiving.wait();
    if (got.ok()) {
      target.expect(content);
    } else {
      EXPECT_EQ(got.error.code(), errc::closed) << told(got.error);
    }
    target.fill(after);
    std::this_thread::sleep_for(20ms);
    target.expect(after);
    pipe_.close();
    expect_nothing_mapped();
  }
}

TEST_P(pipe_push, a_copy_that_fails_is_told_at_both_ends) {
  constexpr std::size_t size = 2 * mib;
  start_posted("posts", size);
  auto source = on_device(size);
  source.fill(some_bytes(size, 1));
  for (const char* call : {"copy", "record", "reached"}) {
    SCOPED_TRACE(call);
    doors_.driver->fail(call, 1, status(errc::device, "injected"), 1);
    // Else the device tells the other end that the bytes are there, where only what comes behind the copy has failed.
    doors_.driver->fail("write_value", 1, status(errc::unsupported, "injected"), faulty_driver::always);
    EXPECT_EQ(pipe_.send({"", {}, {{source.data(), size}}}).wait().error.code(), errc::device);
    doors_.driver->clear_faults();
    EXPECT_NE(peer_->line().find("injected"), std::string::npos);
  }
}

TEST_P(pipe_push, what_the_device_cannot_tell_by_itself_the_pipe_tells) {
  constexpr std::size_t size = 100'000;
  const auto content = some_bytes(size, 4);
  for (const char* call : {"pin", "write_value"}) {
    SCOPED_TRACE(call);
    start_posted("posts", size);
    auto source = on_device(size);
    source.fill(content);
    doors_.driver->fail(call, 1, status(errc::unsupported, "injected"), faulty_driver::always);
    for (int i = 0; i < 3; ++i) {
      auto target = on_device(size);
      posted back;
      post(back, target);
      auto sent = pipe_.send({"", {}, {{source.data(), size}}});
      ASSERT_TRUE(back.receiving.wait().ok());
      target.expect(content);
      EXPECT_TRUE(sent.wait().ok());
    }
    EXPECT_EQ(stats_of("cuda_ipc").pushed_tensors, 6U);
    doors_.driver->clear_faults();
    pipe_.close();
  }
}

// Targets that cannot be mapped, and an end whose death could not be seen: what comes is fetched.
TEST_P(pipe_push, what_cannot_be_pushed_is_fetched) {
  constexpr std::size_t size = 2 * mib;
  const auto content = some_bytes(size, 4);
  auto door = std::make_shared<faulty_peer>();
  door->watches_none = true;
  const pipe_context context(*pipes::server::make(house_.engine().core(), door, {}));
  for (const bool watches : {false, true}) {
    SCOPED_TRACE(watches);
    if (!watches) listener_ = *context.listen("unix:");
    if (watches) listener_ = *context_->listen("unix:");
    if (watches) doors_.driver->fail("open_shared", 1, status(errc::device, "injected"), faulty_driver::always);  // of the peer's target
    start_posted("posts", size);
    auto source = on_device(size);
    source.fill(content);
    auto target = on_device(size);
    posted back;
    post(back, target);
    auto sent = pipe_.send({"", {}, {{source.data(), size}}});
    const auto got = back.receiving.wait();
    ASSERT_TRUE(got.ok()) << told(got.error);
    target.expect(content);
    EXPECT_TRUE(sent.wait().ok());
    EXPECT_EQ(stats_of("cuda_ipc").pushed_tensors, 1U) << "one way it could";
    pipe_.close();
    doors_.driver->clear_faults();
  }
}

TEST_P(pipe_push, memory_that_was_posted_is_mapped_before_a_message_is_sent_and_goes_with_the_pipe) {
  constexpr std::size_t size = 2 * mib;
  auto source = on_device(size);
  source.fill(some_bytes(size, 4));
  start_posted("posts", size);
  until([&] { return doors_.driver->live().imports == 1; });
  auto target = on_device(size);
  posted back;
  post(back, target);
  EXPECT_TRUE(pipe_.send({"", {}, {{source.data(), size}}}).wait().ok());
  ASSERT_TRUE(back.receiving.wait().ok());
  target.expect(some_bytes(size, 4));
  EXPECT_EQ(doors_.driver->calls("open_shared"), 1U);
  EXPECT_EQ(stats_of("cuda_ipc").pushed_tensors, 2U);
  pipe_.close();
  expect_nothing_mapped();
}

// Nobody sends there: its receiver is gone, and the pipe is closed while the driver maps.
TEST_P(pipe_push, memory_whose_pipe_ends_while_it_is_being_mapped_is_let_go_of) {
  for (const bool killed : {true, false}) {
    SCOPED_TRACE(killed);
    const auto source = on_device(mib);
    struct held_up {
      std::promise<void> entered;
      std::promise<void> goes_on;
      std::atomic<bool> first{true};
    };
    const auto mapping = std::make_shared<held_up>();  // the thread that maps may have it longest
    doors_.driver->set_hook([mapping](std::string_view call, std::uint64_t /*n*/) -> std::optional<status> {
      if (call != "open_shared" || !mapping->first.exchange(false)) return std::nullopt;
      mapping->entered.set_value();
      mapping->goes_on.get_future().wait();
      return std::nullopt;
    });
    start_posted("posts", mib);
    mapping->entered.get_future().wait();
    if (killed) {
      peer_->kill();
      EXPECT_EQ(receive_nothing().code(), errc::closed);
    }
    pipe_.close();
    mapping->goes_on.set_value();
    doors_.driver->clear_faults();
    start_posted("posts", mib);  // mapped by the same thread: behind it
    until([&] { return doors_.driver->live().imports > 0; });
    pipe_.close();
    expect_nothing_mapped();
  }
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_push, ::testing::Values(way{"ipc", "unix:", {}}), name_of_way);

}  // namespace
}  // namespace penstock::testing
