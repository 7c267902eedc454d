// Two ends of a pipe in one process, over each transport and by each channel.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "channel/channel.hpp"
#include "channel/fabrics.hpp"
#include "core/engine_core.hpp"
#include "penstock/pipe.hpp"
#include "pipe/heap_channel.hpp"
#include "pipe/server.hpp"
#include "support/pattern.hpp"
#include "sys/fabric.hpp"

namespace penstock::testing {

struct way {
  std::string name;
  const char* url;
  std::vector<std::string> channels;
};

inline std::vector<way> all_ways() {
  return {{"unix_xth", "unix:", {}},
          {"unix_cma", "unix:", {"cma"}},
          {"unix_basic", "unix:", {"basic"}},
          {"tcp_basic", "tcp://127.0.0.1:0", {"basic", "cuda_basic"}},
          {"tcp_mpt", "tcp://127.0.0.1:0", {}}};
}
// Over UCX's tcp, since it is named.
inline way by_ucx() { return {"tcp_ucx", "tcp://127.0.0.1:0", {"ucx"}}; }
inline std::vector<const channel::channel*> channels_of_tests() { return {&heap_channel::the()}; }
// Each channel that there is for memory of the host, alone, over each transport by which it would serve two pipes of this process.
inline std::vector<way> each_channel() {
  std::vector<const channel::channel*> all = channels_of_tests();
  all.insert(all.end(), channel::all_channels().begin(), channel::all_channels().end());
  const auto door = sys::linux_peer();
  std::vector<way> ways;
  for (const auto* each : all) {
    for (const bool local : {true, false}) {
      channel::fabrics network(sys::ucx_fabrics(), true, true, "/sys");
      auto here = channel::own_identity();
      here.connections = local ? 0 : 4;
      auto there = here;
      there.vouched = local;
      const bool serves = each->serves(false, false) && (each->over_fabric() || !each->refuses(there, here, {*door, network, local}));
      const std::string name(each->name());
      if (serves) ways.push_back({(local ? "unix_" : "tcp_") + name, local ? "unix:" : "tcp://127.0.0.1:0", {name}});
    }
  }
  return ways;
}
// Why the kernel does not let this process read memory by its number, not even its own; empty when it does.
inline std::string missing_to_read_memory() {
  const std::uint64_t there = 1;
  std::uint64_t here = 0;
  const auto read = sys::linux_peer()->read_memory(::getpid(), reinterpret_cast<std::uintptr_t>(&there),
                                                   reinterpret_cast<std::byte*>(&here), sizeof here);
  return read.ok() ? std::string() : "process_vm_readv is missing, by which channels read the sender's memory";
}
#define PENSTOCK_SKIP_WITHOUT_READING_MEMORY \
  if (const auto missing = missing_to_read_memory(); !missing.empty()) GTEST_SKIP() << missing

// Why a way cannot be gone here; empty when it can.
inline std::string missing_for(const way& by) {
  // Those that are named after a channel which does; others take what there is.
  const std::string_view called = by.name;
  if (called == "ipc" || called.ends_with("xth") || called.ends_with("cma")) {
    if (auto missing = missing_to_read_memory(); !missing.empty()) return missing;
  }
  const auto needs = [](const std::string& name) { return name == "ucx" || name == "cuda_gdr"; };
  if (std::none_of(by.channels.begin(), by.channels.end(), needs)) return {};
  return std::string(sys::ucx_fabrics()->usable().message());
}
#define PENSTOCK_SKIP_WITHOUT(way) \
  if (const auto missing = missing_for(way); !missing.empty()) GTEST_SKIP() << missing

inline std::string name_of_way(const ::testing::TestParamInfo<way>& info) { return info.param.name; }

using bytes = std::vector<std::byte>;

inline bytes some_bytes(std::size_t count, unsigned seed) {
  bytes made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(i * 131 + (i >> 9) * 17 + seed * 29 + 1);
  return made;
}

// Looks until it holds, for as long as a slow machine may need.
template <class Holds>
bool comes_true(Holds holds) {
  for (int i = 0; i < 2000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return holds();
}

// Message, tensors received.
struct received {
  io_result outcome;
  incoming_message message;
  std::vector<bytes> tensors;
};

inline std::vector<incoming_target> room_for(const incoming_message& message, std::vector<bytes>& room) {
  std::vector<incoming_target> targets;
  for (const auto& each : message.tensors()) {
    auto& made = room.emplace_back(each.length);
    targets.push_back({made.data(), made.size()});
  }
  return targets;
}

// Waits for the next message and for its tensors.
inline received receive_from(const penstock::pipe& from) {
  received got;
  got.outcome = from.next(got.message).wait();
  if (got.outcome.ok()) got.outcome = got.message.receive(room_for(got.message, got.tensors)).wait();
  return got;
}

inline pipe_operation_options within(std::chrono::milliseconds time) { return {deadline_clock::now() + time}; }

class pipe_fixture : public ::testing::Test {
 protected:
  explicit pipe_fixture(const way& by) : by_(by) {
    if (!missing_for(by).empty()) return;  // the test is skipped
    auto made = engine::create(engine_options{});
    EXPECT_TRUE(made.ok());
    engine_.emplace(*std::move(made));
    context_.emplace(context_of(by, *engine_));
    auto listener = context_->listen(by.url);
    EXPECT_TRUE(listener.ok()) << listener.error().message();
    listener_ = *std::move(listener);
    connect_both();
  }
  void connect_both() {
    auto accepted = listener_.accept(here_);
    auto made = context_->connect(listener_.url());
    ASSERT_TRUE(made.ok()) << made.error().message();
    there_ = *std::move(made);
    const auto outcome = accepted.wait();
    ASSERT_TRUE(outcome.ok()) << outcome.error.message();
  }
  // Beside the registry's, with the channels that the tests have.
  [[nodiscard]] static pipe_context context_of(const way& by, const engine& with) {
    const auto further = channels_of_tests();
    auto made = pipes::server::make(with.core(), sys::linux_peer(), {by.channels}, sys::ucx_fabrics(), "/sys", further);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return pipe_context(*std::move(made));
  }

  const way by_;
  std::optional<engine> engine_;
  std::optional<pipe_context> context_;
  pipe_listener listener_;
  penstock::pipe here_;
  penstock::pipe there_;
};

}  // namespace penstock::testing
