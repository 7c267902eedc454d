// The other process of a pipe: connects to a listener, does what it is told, and says on its standard output when it is there.
// Usage: penstock_pipe_peer URL CHANNEL|all STEP [BYTES]. Ends when its standard input does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/pipe.hpp"

namespace {

using penstock::incoming_message;
using penstock::incoming_target;

void tell(std::string_view word) {
  std::printf("%.*s\n", static_cast<int>(word.size()), word.data());
  std::fflush(stdout);
}

void stay() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int fail(const penstock::status& why) {
  tell("failed: " + std::string(why.message()));
  return 1;
}

std::vector<incoming_target> room_for(const incoming_message& message, std::vector<std::byte>& room) {
  std::size_t total = 0;
  for (const auto& each : message.tensors()) total += each.length;
  room.resize(total);
  std::vector<incoming_target> targets;
  std::size_t at = 0;
  for (const auto& each : message.tensors()) {
    targets.push_back({room.data() + at, each.length});
    at += each.length;
  }
  return targets;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  const std::string channel = words[2];
  const std::string step = words[3];
  const std::size_t bytes = count > 4 ? std::strtoull(words[4], nullptr, 10) : 0;
  auto engine = penstock::engine::create(penstock::engine_options{});
  if (!engine) return fail(engine.error());
  auto context = penstock::pipe_context::create(*engine, {channel == "all" ? std::vector<std::string>{} : std::vector{channel}});
  if (!context) return fail(context.error());
  auto pipe = context->connect(words[1]);
  if (!pipe) return fail(pipe.error());
  const auto known = pipe->explain();
  if (!known) return fail(known.error());
  incoming_message message;
  std::vector<std::byte> room;
  const std::vector<std::byte> content(bytes, std::byte{42});
  if (step == "known") {
    tell("there");
  } else if (step == "has the message") {
    if (const auto come = pipe->next(message).wait(); !come.ok()) return fail(come.error);
    tell("there");
  } else if (step == "receives") {
    if (const auto come = pipe->next(message).wait(); !come.ok()) return fail(come.error);
    auto receiving = message.receive(room_for(message, room));
    tell("there");
    stay();
    return 0;
  } else if (step == "sends") {
    auto sending = pipe->send({"from the peer", {}, {{content.data(), content.size(), {}}}});
    tell("there");
    stay();
    return 0;
  } else if (step == "echoes") {
    tell("there");
    for (;;) {
      if (!pipe->next(message).wait().ok()) return 0;
      if (const auto got = message.receive(room_for(message, room)).wait(); !got.ok()) return fail(got.error);
      if (const auto sent = pipe->send({std::string(message.metadata()), {}, {{room.data(), room.size(), {}}}}).wait(); !sent.ok())
        return 0;
    }
  } else {
    return 2;
  }
  stay();
  return 0;
}
