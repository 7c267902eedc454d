// Every call of the peer interface may fail: waiting callers get an error, nothing hangs, and nothing leaks.
#include <thread>

#include "contract/contract_fixture.hpp"
#include "pipe/faulty_peer.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/server.hpp"
#include "support/open_descriptors.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

class peer_fault : public ::testing::TestWithParam<way> {
 protected:
  guarded_memory memory(memory_place place, std::size_t length) { return {house_, place, length, 0}; }

  static constexpr auto soon = 150ms;

  // Two ends of a pipe that send each other tensors of both kinds. Everything ends, well or not; what ends well is right.
  void speak(const std::shared_ptr<faulty_peer>& door, std::size_t size) {
    auto server = pipes::server::make(house_.engine().core(), door, {.channels = GetParam().channels});
    if (!server) return;
    const pipe_context context(*std::move(server));
    auto listener = context.listen(GetParam().url);
    if (!listener) return;
    penstock::pipe here;
    auto accepting = listener->accept(here, within(soon));
    auto there = context.connect(listener->url());
    if (!there) {
      accepting.cancel();  // its pipe goes with this function
      (void)accepting.wait();
      return;
    }
    const bool accepted = accepting.wait().ok();
    const auto content = some_bytes(size, 7);
    auto on_device = memory(memory_place::device, size);
    on_device.fill(content);
    bytes room(size);
    auto target = memory(memory_place::device, size);
    auto back = memory(memory_place::device, size);
    for (int i = 0; i < 2; ++i) {
      incoming_message come;
      incoming_message answer;
      auto receiving = here.receive(come, {{room.data(), size}, {target.data(), size}}, within(soon));
      auto answered = there->receive(answer, {{back.data(), size}}, within(soon));
      auto sent = there->send({"there", {}, {{on_device.data(), size}, {content.data(), size}}}, within(soon));
      auto sent_back = here.send({"back", {}, {{on_device.data(), size}}}, within(soon));
      const auto got = receiving.wait();
      const auto got_back = answered.wait();
      if (got.ok()) {
        EXPECT_EQ(room, content);
        target.expect(content);
      }
      if (got_back.ok()) back.expect(content);
      const bool went = sent.wait().ok();
      const bool went_back = sent_back.wait().ok();  // whatever became of the others: its memory goes with this function
      if (!went || !went_back || !got.ok() || !got_back.ok()) return;
      EXPECT_TRUE(accepted && here.explain().ok());
    }
  }

  // Of the calls, each that the steps come to fails once, and from then on.
  void try_all(std::uint64_t step, std::uint64_t lasting_step);

  open_house house_{{}, core::real_seams({})};
};

void peer_fault::try_all(std::uint64_t step, std::uint64_t lasting_step) {
  const bool striped = GetParam().name == "tcp_mpt";
  const std::size_t size = striped ? 5 << 20 : 300'000;  // that further connections are made for
  const std::uint64_t most_calls = striped ? 120 : 60;
  const auto counting = std::make_shared<faulty_peer>();
  speak(counting, size);
  const auto calls = std::min<std::uint64_t>(counting->calls() + 3, most_calls);
  const auto before = open_descriptors();
  for (const bool lasting : {false, true}) {
    for (std::uint64_t nth = 1; nth <= calls; nth += lasting ? lasting_step : step) {
      SCOPED_TRACE("call " + std::to_string(nth) + (lasting ? " and all that follow" : ""));
      const auto door = std::make_shared<faulty_peer>();
      door->fail(nth, lasting ? ~std::uint64_t{0} / 4 : 1);
      speak(door, size);
      if (HasFatalFailure()) return;
    }
  }
  speak(std::make_shared<faulty_peer>(), size);
  for (int i = 0; i < 200 && open_descriptors() > before; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_LE(open_descriptors(), before);
}

TEST_P(peer_fault, calls_may_fail_once_and_from_then_on) { try_all(2, 4); }
TEST_P(peer_fault, long_every_call_may_fail_once_and_from_then_on) { try_all(1, 1); }

INSTANTIATE_TEST_SUITE_P(ways, peer_fault, ::testing::ValuesIn(all_ways()), name_of_way);

}  // namespace
}  // namespace penstock::testing
