// A pipe to penstock_pipe_peer, with tensors in memory of devices at both ends.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "pipe/faulty_doors.hpp"
#include "pipe/peer_process.hpp"
#include "pipe/pipe_fixture.hpp"

namespace penstock::testing {

class pipe_device_processes : public ::testing::TestWithParam<way> {
 protected:
  pipe_device_processes() : house_({}, doors_.seams) {
    context_.emplace(*pipe_context::create(house_.engine()));
    listener_ = *context_->listen("unix:");
  }
  void SetUp() override { PENSTOCK_SKIP_WITHOUT(GetParam()); }
  void start(const std::string& step, std::size_t size = 0) {
    auto accepted = listener_.accept(pipe_);
    const auto& channels = GetParam().channels;
    peer_.emplace(path_of_peer(), listener_.url(), channels.empty() ? "all" : channels.front(), step, size, house_.device());
    ASSERT_TRUE(accepted.wait().ok());
  }
  [[nodiscard]] bool maps() const { return GetParam().channels.empty(); }
  guarded_memory on_device(std::size_t length) { return {house_, memory_place::device, length}; }
  // The next message comes into memory of the device.
  io_result receive(guarded_memory& into) {
    incoming_message come;
    const auto outcome = pipe_.next(come).wait();
    return outcome.ok() ? come.receive({{into.data(), into.size()}}).wait() : outcome;
  }
  // The thread that hears of the other end's end may still be at it.
  void expect_nothing_mapped() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (doors_.driver->live().imports != 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(doors_.driver->live().imports, 0);
  }
  [[nodiscard]] std::vector<channel_choice> route() const {
    const auto plan = pipe_.explain();
    EXPECT_TRUE(plan.ok()) << told(plan.error());
    for (const auto& each : plan->received) {
      if (each.from == house_.device() && each.to == house_.device()) return each.channels;
    }
    return {};
  }
  [[nodiscard]] std::string chosen() const {
    for (const auto& each : route()) {
      if (each.chosen) return each.name;
    }
    return "none";
  }

  faulty_doors doors_;
  open_house house_;
  std::optional<pipe_context> context_;
  pipe_listener listener_;
  penstock::pipe pipe_;
  std::optional<peer_process> peer_;
};

}  // namespace penstock::testing
