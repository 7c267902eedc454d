// Tensors received in stream order: work queued on a stream after a receive finds the bytes, and the stream continues even if the receive
// fails.
#include <atomic>
#include <cstring>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "pipe/device_process_fixture.hpp"
#include "pipe/faulty_doors.hpp"
#include "pipe/pipe_fixture.hpp"

#if defined(__SANITIZE_THREAD__)
// When a request is given up, its stream may copy a slab while the slab is being filled. The bytes are copied again once the fill has
// ended.
extern "C" [[gnu::visibility("default"), gnu::used]] const char* __tsan_default_suppressions() {
  return "race:penstock::source::awaited_memory::serve\n";
}
#endif

namespace penstock::testing::stream_order {
namespace {

using namespace std::chrono_literals;

// A stream of a device, which can be held.
class own_stream {
 public:
  explicit own_stream(device::session& of) : session_(of), flag_(of, 4096) {
    flag_.fill(std::byte{0});
    on_ = *of.make_stream();
  }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  ~own_stream() {
    let_go();
    PENSTOCK_EXPECT_OK(session_.synchronize(on_));
    PENSTOCK_EXPECT_OK(session_.destroy_stream(on_));
  }
  [[nodiscard]] device::stream get() const { return on_; }
  void hold() { PENSTOCK_EXPECT_OK(session_.wait_value(on_, word(), 1)); }
  void let_go() { std::atomic_ref(*word()).store(1, std::memory_order_release); }
  void copy(void* target, const void* source, std::size_t size) { PENSTOCK_EXPECT_OK(session_.copy(target, source, size, on_)); }
  void synchronize() { PENSTOCK_EXPECT_OK(session_.synchronize(on_)); }

 private:
  std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(flag_.data()); }
  device::session& session_;
  pinned_memory flag_;
  device::stream on_ = nullptr;
};

class pipe_stream_order : public ::testing::TestWithParam<way> {
 protected:
  pipe_stream_order() : house_({}, doors_.seams) {
    if (!missing_for(GetParam()).empty()) return;
    context_.emplace(*pipe_context::create(house_.engine(), {GetParam().channels}));
    auto listener = *context_->listen(GetParam().url);
    auto accepted = listener.accept(here_);
    there_ = *context_->connect(listener.url());
    EXPECT_TRUE(accepted.wait().ok());
    if (house_.on_gpu()) warm_up();
  }
  void SetUp() override { PENSTOCK_SKIP_WITHOUT(GetParam()); }
  // What a driver loads for the first of each kind waits until no stream is held.
  void warm_up() {
    for (const auto from : {memory_place::pageable, memory_place::device}) {
      for (const std::size_t size : {std::size_t{1}, 21 * mib + 77}) {
        auto source = memory(from, size, 5);
        auto target = memory(memory_place::device, size, 3);
        own_stream stream(device());
        auto sent = here_.send({"", {}, {{source.data(), size}}});
        auto come = next();
        EXPECT_TRUE(come.receive_on_stream({{target.data(), size, stream.get()}}).wait().ok());
        EXPECT_TRUE(sent.wait().ok());
      }
    }
  }
  guarded_memory memory(memory_place place, std::size_t length, std::size_t shift = 0) { return {house_, place, length, shift}; }
  device::session& device() { return house_.session(); }
  incoming_message next() {
    incoming_message come;
    EXPECT_TRUE(there_.next(come).wait().ok());
    return come;
  }

  faulty_doors doors_{GetParam().name != "tcp_gdr"};
  open_house house_;
  std::optional<pipe_context> context_;
  penstock::pipe here_;
  penstock::pipe there_;
};

TEST_P(pipe_stream_order, what_the_stream_is_given_behind_it_finds_the_bytes_and_what_it_had_comes_first) {
  for (const auto from : {memory_place::pageable, memory_place::device}) {
    for (const std::size_t size : {std::size_t{1}, 16 * kib + 1, mib + 3, 21 * mib + 77}) {
      SCOPED_TRACE(to_string(from) + ", " + std::to_string(size));
      const auto content = some_bytes(size, 3);
      auto source = memory(from, size, 5);
      source.fill(content);
      auto target = memory(memory_place::device, size, 3);
      pinned_memory old(device(), size);
      pinned_memory seen(device(), size);
      old.fill(std::byte{7});
      own_stream stream(device());
      stream.hold();
      stream.copy(target.data(), old.data(), size);
      auto sent = here_.send({"", {}, {{source.data(), size}}});
      auto come = next();
      auto receiving = come.receive_on_stream({{target.data(), size, stream.get()}});
      stream.copy(seen.data(), target.data(), size);
      EXPECT_FALSE(receiving.done()) << "the stream has not passed";
      stream.let_go();
      stream.synchronize();
      EXPECT_EQ(std::memcmp(seen.data(), content.data(), size), 0);
      const auto outcome = receiving.wait();
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, size);
      EXPECT_TRUE(sent.wait().ok());
      target.expect(content);
    }
  }
}

TEST_P(pipe_stream_order, many_receives_stand_on_a_stream_and_nobody_waits_between) {
  constexpr std::size_t count = 40;
  constexpr std::size_t size = mib + 5;
  const auto content = some_bytes(size * count, 9);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, size);
  pinned_memory seen(device(), content.size());
  own_stream stream(device());
  std::vector<operation> sends;
  std::vector<operation> receives;
  for (std::size_t i = 0; i < count; ++i) sends.push_back(here_.send({"", {}, {{source.data() + i * size, size}}}));
  for (std::size_t i = 0; i < count; ++i) {
    auto come = next();
    receives.push_back(come.receive_on_stream({{target.data(), size, stream.get()}}));
    stream.copy(seen.data() + i * size, target.data(), size);  // before the next is written there
  }
  stream.synchronize();
  EXPECT_EQ(std::memcmp(seen.data(), content.data(), content.size()), 0);
  for (auto& each : receives) {
    const auto outcome = each.wait();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  }
  for (auto& each : sends) EXPECT_TRUE(each.wait().ok());
}

TEST_P(pipe_stream_order, tensors_of_a_message_go_in_the_order_of_a_stream_each_and_to_the_host) {
  const auto first = some_bytes(3 * mib + 1, 1);
  const auto second = some_bytes(2 * mib + 7, 2);
  const auto third = some_bytes(mib, 3);
  for (const auto& [of_held, of_other] :
       {std::pair(memory_place::device, memory_place::pageable), std::pair(memory_place::pageable, memory_place::device)}) {
    SCOPED_TRACE("the stream of what is in " + std::string(to_string(of_held)) + " is held");
    auto source = memory(of_held, first.size());
    source.fill(first);
    auto other_source = memory(of_other, second.size());
    other_source.fill(second);
    auto sent =
        here_.send({"", {}, {{source.data(), first.size()}, {nullptr, 0}, {other_source.data(), second.size()}, {third.data(), mib}}});
    auto target = memory(memory_place::device, first.size());
    auto other = memory(memory_place::device, second.size());
    bytes room(mib);
    pinned_memory seen(device(), first.size());
    pinned_memory seen_of_other(device(), second.size());
    own_stream held(device());
    own_stream stream(device());
    held.hold();
    auto come = next();
    auto receiving = come.receive_on_stream(
        {{target.data(), first.size(), held.get()}, {nullptr, 0}, {other.data(), second.size(), stream.get()}, {room.data(), mib}});
    held.copy(seen.data(), target.data(), first.size());
    stream.copy(seen_of_other.data(), other.data(), second.size());
    stream.synchronize();  // whatever the first one does
    EXPECT_EQ(std::memcmp(seen_of_other.data(), second.data(), second.size()), 0);
    EXPECT_FALSE(receiving.done());
    held.let_go();
    held.synchronize();
    EXPECT_EQ(std::memcmp(seen.data(), first.data(), first.size()), 0);
    const auto outcome = receiving.wait();
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(room, third);
    EXPECT_TRUE(sent.wait().ok());
  }
}

TEST_P(pipe_stream_order, one_that_is_stopped_lets_a_stream_go_on_while_another_is_held) {
  const auto content = some_bytes(2 * mib, 1);
  auto on_device = memory(memory_place::device, content.size());
  on_device.fill(content);
  for (const bool too_late : {true, false}) {
    auto sent = here_.send({"", {}, {{content.data(), content.size()}, {on_device.data(), content.size()}}});
    auto target = memory(memory_place::device, content.size());
    auto other = memory(memory_place::device, content.size());
    own_stream held(device());
    own_stream stream(device());
    held.hold();
    auto come = next();
    auto receiving = come.receive_on_stream({{target.data(), content.size(), held.get()}, {other.data(), content.size(), stream.get()}},
                                            too_late ? within(0ms) : pipe_operation_options());
    if (!too_late) receiving.cancel();
    stream.synchronize();
    held.let_go();
    const auto outcome = receiving.wait();
    EXPECT_EQ(outcome.error.code(), too_late ? errc::timed_out : errc::cancelled) << told(outcome.error);
    (void)sent.wait();
  }
}

TEST_P(pipe_stream_order, a_message_that_was_taken_back_is_an_error_of_the_end_and_the_stream_goes_on) {
  const auto content = some_bytes(8 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, content.size());
  own_stream stream(device());
  for (int i = 0; i < 10; ++i) {
    auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
    auto come = next();
    if (i % 2 == 0) sent.cancel();
    auto receiving = come.receive_on_stream({{target.data(), content.size(), stream.get()}});
    sent.cancel();
    stream.synchronize();
    const auto outcome = receiving.wait();
    if (outcome.ok()) {
      target.expect(content);
    } else {
      EXPECT_TRUE(outcome.error.code() == errc::cancelled || outcome.error.code() == errc::closed) << told(outcome.error);
    }
    EXPECT_TRUE(i % 2 == 1 || !outcome.ok());
  }
}

TEST_P(pipe_stream_order, one_that_is_closed_or_cancelled_or_too_late_lets_the_stream_go_on) {
  const auto content = some_bytes(8 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, content.size());
  for (int i = 0; i < 3; ++i) {
    own_stream stream(device());
    stream.hold();  // so that it cannot have ended before
    auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
    auto come = next();
    auto receiving =
        come.receive_on_stream({{target.data(), content.size(), stream.get()}}, i == 0 ? within(0ms) : pipe_operation_options());
    if (i == 1) receiving.cancel();
    if (i == 2) there_.close();
    stream.let_go();
    stream.synchronize();
    const auto outcome = receiving.wait();
    EXPECT_EQ(outcome.error.code(), i == 0 ? errc::timed_out : i == 1 ? errc::cancelled : errc::closed) << told(outcome.error);
    (void)sent.wait();
  }
}

TEST_P(pipe_stream_order, every_call_of_the_device_may_fail_and_no_stream_stands_still) {
  const auto content = some_bytes(3 * mib, 1);
  auto source = memory(memory_place::device, content.size());
  source.fill(content);
  auto target = memory(memory_place::device, content.size());
  own_stream stream(device());
  for (std::uint64_t nth = 1; nth <= 40; ++nth) {
    SCOPED_TRACE(nth);
    auto sent = here_.send({"", {}, {{source.data(), content.size()}}});
    auto come = next();
    doors_.driver->fail_any(nth, status(errc::device, "made to fail"));
    auto receiving = come.receive_on_stream({{target.data(), content.size(), stream.get()}});
    const auto outcome = receiving.wait();
    come = {};
    const auto sending = sent.wait();
    doors_.driver->clear_faults();
    stream.synchronize();
    if (outcome.ok()) {
      target.expect(content);
    } else {
      const auto both = told(outcome.error) + "; " + told(sending.error);
      EXPECT_NE(both.find("made to fail"), std::string::npos) << both;
    }
  }
}

TEST_P(pipe_stream_order, what_is_wrong_is_told_and_nothing_is_put_onto_the_stream) {
  const auto content = some_bytes(mib, 1);
  auto target = memory(memory_place::device, mib);
  own_stream stream(device());
  auto sent = here_.send({"", {}, {{content.data(), mib}}});
  auto come = next();
  EXPECT_EQ(come.receive_on_stream({}).wait().error.code(), errc::invalid_argument);
  EXPECT_TRUE(come.receive_on_stream({{target.data(), mib, stream.get()}}).wait().ok());
  EXPECT_EQ(come.receive_on_stream({{target.data(), mib, stream.get()}}).wait().error.code(), errc::invalid_argument) << "twice";
  EXPECT_EQ(incoming_message().receive_on_stream({}).wait().error.code(), errc::closed);
  EXPECT_TRUE(sent.wait().ok());
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_stream_order,
                         ::testing::Values(way{"unix_xth", "unix:", {}}, way{"unix_cma", "unix:", {"cma", "cuda_basic"}},
                                           way{"unix_basic", "unix:", {"basic", "cuda_basic"}},
                                           way{"tcp_basic", "tcp://127.0.0.1:0", {"basic", "cuda_basic"}},
                                           way{"tcp_mpt", "tcp://127.0.0.1:0", {}},
                                           way{"tcp_gdr", "tcp://127.0.0.1:0", {"ucx", "cuda_gdr"}}),
                         name_of_way);

class pipe_stream_order_processes : public pipe_device_processes {};

TEST_P(pipe_stream_order_processes, one_that_is_killed_leaves_no_stream_standing_and_no_wrong_bytes) {
  constexpr std::size_t size = 32 * mib;
  const bytes content(size, std::byte{42});
  own_stream stream(house_.session());
  for (int i = 0; i < 4; ++i) {
    start("sends", size);
    ASSERT_EQ(peer_->line(), "there");
    incoming_message come;
    ASSERT_TRUE(pipe_.next(come).wait().ok());
    auto target = on_device(size);
    if (i == 0) peer_->kill();
    auto receiving = come.receive_on_stream({{target.data(), size, stream.get()}});
    peer_->kill();
    stream.synchronize();
    const auto outcome = receiving.wait();
    if (outcome.ok()) {
      target.expect(content);
    } else {
      EXPECT_TRUE(outcome.error.code() == errc::closed || outcome.error.code() == errc::io) << told(outcome.error);
    }
    pipe_.close();
  }
}

TEST_P(pipe_stream_order_processes, one_that_is_stopped_holds_up_a_stream_no_longer_than_the_deadline) {
  constexpr std::size_t size = 32 * mib;
  own_stream stream(house_.session());
  start("sends", size);
  ASSERT_EQ(peer_->line(), "there");
  incoming_message come;
  ASSERT_TRUE(pipe_.next(come).wait().ok());
  auto target = on_device(size);
  peer_->send_signal(SIGSTOP);
  auto receiving = come.receive_on_stream({{target.data(), size, stream.get()}}, within(100ms));
  stream.synchronize();
  const auto outcome = receiving.wait();
  EXPECT_TRUE(outcome.error.code() == errc::timed_out || (maps() && outcome.ok())) << told(outcome.error);
  peer_->send_signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(ways, pipe_stream_order_processes,
                         ::testing::Values(way{"ipc", "unix:", {}}, way{"basic", "unix:", {"cuda_basic"}}), name_of_way);

}  // namespace
}  // namespace penstock::testing::stream_order
