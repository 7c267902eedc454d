// The other process of a pipe: connects to a listener, executes a step, and reports on standard output when it is ready. Usage:
// penstock_pipe_peer URL CHANNEL|all STEP [BYTES [DEVICE]]. Its tensors are in memory of the device, if one is given. Exits at the end of
// its standard input.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "channel/connection.hpp"
#include "channel/proof.hpp"
#include "channel/wire.hpp"
#include "penstock/pipe.hpp"
#include "sys/peer.hpp"

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

// Memory for tensors, of the host or of a device.
class memory {
 public:
  memory(const penstock::engine& with, std::string device) : engine_(with), device_(std::move(device)) {}
  void resize(std::size_t bytes) {
    size_ = bytes;
    if (device_.empty()) {
      on_host_.resize(bytes);
    } else if (bytes > capacity_) {
      on_device_ = {};
      auto made = engine_.allocate(device_, bytes);
      if (!made) std::exit(fail(made.error()));
      on_device_ = *std::move(made);
      capacity_ = bytes;
    }
  }
  [[nodiscard]] const std::byte* data() const { return const_cast<memory*>(this)->data(); }
  [[nodiscard]] std::byte* data() { return device_.empty() ? on_host_.data() : static_cast<std::byte*>(on_device_.data()); }
  [[nodiscard]] std::size_t size() const { return size_; }
  void fill(std::byte value) {
    const std::vector<std::byte> content(size_, value);
    if (size_ > 0) (void)engine_.copy(data(), content.data(), size_);
  }

 private:
  const penstock::engine& engine_;
  const std::string device_;
  std::vector<std::byte> on_host_;
  penstock::device_buffer on_device_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

std::vector<incoming_target> room_for(const incoming_message& message, memory& room) {
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

// Always with so many receives that are posted, of this length; sends back what comes.
int post_and_echo(const penstock::pipe& pipe, memory& room, std::size_t bytes) {
  constexpr std::size_t ahead = 4;
  struct slot {
    incoming_message message;
    penstock::operation receiving;
  };
  room.resize(ahead * bytes);
  std::vector<slot> slots(ahead);
  const auto post = [&](std::size_t index) {
    slots[index].receiving = pipe.receive(slots[index].message, std::vector<incoming_target>{{room.data() + index * bytes, bytes}});
  };
  for (std::size_t i = 0; i < ahead; ++i) post(i);
  if (!pipe.send({"posted"}).wait().ok()) return 0;
  tell("there");
  for (std::size_t i = 0;; ++i) {
    auto& each = slots[i % ahead];
    const auto got = each.receiving.wait();
    if (got.error.code() == penstock::errc::closed) return 0;
    if (!got.ok()) {
      tell("failed: " + std::string(got.error.message()));
    } else if (!pipe.send({std::string(each.message.metadata()), {}, {{room.data() + i % ahead * bytes, bytes}}}).wait().ok()) {
      return 0;
    }
    post(i % ahead);
  }
}

// For each message: one whose metadata is its number, of two tensors, or one where told so. Of one that asks whether it has come: that it
// has. What the other end said before, as where its targets are, is known by then.
int answer(const penstock::pipe& pipe, const memory& from, std::size_t tensors) {
  tell("there");
  incoming_message asked;
  std::vector<penstock::operation> sent;
  for (int i = 1; pipe.next(asked).wait().ok();) {
    if (asked.metadata() == "come?") {
      tell("come");
      continue;
    }
    const auto first = tensors == 1 ? from.size() : from.size() / 2;
    penstock::outgoing_message message{std::to_string(i++), {}, {{from.data(), first}}};
    if (tensors == 2) message.tensors.push_back({from.data() + first, from.size() - first});
    sent.push_back(pipe.send(message));
  }
  return 0;
}

// Two messages over each of fifty pipes, of which this is the first.
int send_by_many(const penstock::pipe_context& context, const std::string& url, penstock::pipe first, memory& content) {
  std::vector<penstock::pipe> pipes;
  std::vector<penstock::operation> small;
  std::vector<penstock::operation> large;
  pipes.push_back(std::move(first));
  while (pipes.size() < 50) {
    auto another = context.connect(url);
    if (!another) return fail(another.error());
    pipes.push_back(*std::move(another));
  }
  const std::string payload(100, 'p');
  for (const auto& each : pipes) {
    small.push_back(each.send({"small", {{payload.data(), payload.size()}}, {}}));
    large.push_back(each.send({"large", {}, {{content.data(), content.size()}}}));
  }
  for (auto& each : small) {
    if (const auto left = each.wait(); !left.ok()) return fail(left.error);
  }
  tell("there");
  stay();
  return 0;
}

// Strangers of all sorts, so many a second, of whom the latest 4000 hold on: silent, saying a byte, half of what they should, all of it,
// and what nobody understands.
int blow(const std::string& url, std::size_t a_second) {
  namespace channel = penstock::channel;
  using clock = std::chrono::steady_clock;
  constexpr std::size_t most_held = 4000;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  const auto hold = std::min<std::size_t>(most_held, limit.rlim_cur - 100);
  const auto port = static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  std::vector<std::byte> challenge(sizeof(channel::frame_head) + channel::proof::bytes);
  const channel::frame_head head{static_cast<std::uint32_t>(channel::frame_kind::challenge), 0, 0, 0, channel::proof::bytes};
  std::memcpy(challenge.data(), &head, sizeof(head));
  std::vector<std::byte> nonsense(64, std::byte{0xa5});
  const auto door = penstock::sys::linux_peer();
  std::deque<penstock::sys::owned_descriptor> held;
  const auto began = clock::now();
  const auto until = began + std::chrono::seconds(30);  // should nobody kill this
  for (std::size_t number = 0; clock::now() < until; ++number) {
    std::this_thread::sleep_until(began + number * std::chrono::nanoseconds(1'000'000'000) / a_second);
    if (number == 100) tell("there");
    auto made = door->connect({penstock::sys::socket_address::family::tcp, "127.0.0.1", port});
    if (!made) continue;
    door->await_connected(made->get(), std::chrono::milliseconds(1));
    auto& words = number % 5 == 4 ? nonsense : challenge;
    const std::size_t says =
        std::array{std::size_t{0}, std::size_t{1}, challenge.size() / 2, challenge.size(), nonsense.size()}[number % 5];
    const iovec part{words.data(), says};
    if (says > 0) (void)door->send(made->get(), {&part, 1}, {});
    held.push_back(*std::move(made));
    if (held.size() > hold) held.pop_front();
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  const std::string channel = words[2];
  const std::string step = words[3];
  const std::size_t bytes = count > 4 ? std::strtoull(words[4], nullptr, 10) : 0;
  if (step == "storms") return blow(words[1], bytes);
  auto engine = penstock::engine::create(penstock::engine_options{});
  if (!engine) return fail(engine.error());
  auto context = penstock::pipe_context::create(*engine, {channel == "all" ? std::vector<std::string>{} : std::vector{channel}});
  if (!context) return fail(context.error());
  auto pipe = context->connect(words[1]);
  if (!pipe) return fail(pipe.error());
  const auto known = pipe->explain();
  if (!known) return fail(known.error());
  incoming_message message;
  const std::string device = count > 5 ? words[5] : "";
  memory room(*engine, device);
  memory content(*engine, device);
  content.resize(bytes);
  content.fill(std::byte{42});
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
  } else if (step == "sends" || step == "sends a byte first") {
    if (const auto sent = step == "sends" ? penstock::io_result{} : pipe->send({"", {}, {{content.data(), 1, {}}}}).wait(); !sent.ok())
      return fail(sent.error);
    auto sending = pipe->send({"from the peer", {}, {{content.data(), content.size(), {}}}});
    tell("there");
    stay();
    return 0;
  } else if (step == "posts") {
    return post_and_echo(*pipe, room, bytes);
  } else if (step == "answers" || step == "answers with two") {
    return answer(*pipe, content, step == "answers" ? 1 : 2);
  } else if (step == "sends by many") {
    return send_by_many(*context, words[1], *std::move(pipe), content);
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
