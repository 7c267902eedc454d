// Whatever another process sends, a pipe fails or continues, and every waiting call ends.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "channel/connection.hpp"
#include "channel/ring.hpp"
#include "channel/wire.hpp"
#include "core/engine_core.hpp"
#include "pipe/channel_frames.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/server.hpp"
#include "pipe/silent_fabric.hpp"
#include "sys/peer.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using channel::frame_head;
using channel::frame_kind;

// By the numbers that the greeting gives: basic is 2, ucx 3, cuda_ipc 6.
constexpr auto wanted_of_third = of_channel(2, pieces_frames::wanted);
constexpr auto content_of_third = of_channel(2, pieces_frames::content);
constexpr auto line_frame = of_channel(3, lines_frames::offer);
constexpr auto line_ready_frame = of_channel(3, lines_frames::ready);
constexpr auto line_over_frame = of_channel(3, lines_frames::over);
constexpr auto wanted_by_line_frame = of_channel(3, lines_frames::wanted);
constexpr auto sent_by_line_frame = of_channel(3, lines_frames::sent);
constexpr auto posted_frame = of_channel(6, mapping_frames::posted);
constexpr auto pushed_frame = of_channel(6, mapping_frames::pushed);

class pipe_fuzz : public pipe_fixture {
 protected:
  pipe_fuzz() : pipe_fixture({"unix", "unix:", {}}) {
    std::vector<std::string> names;
    for (const auto* each : channel::all_channels()) names.emplace_back(each->name());
    auto server = pipes::server::make(engine_->core(), sys::linux_peer(), {names}, fabric_);
    EXPECT_TRUE(server.ok());
    context_.emplace(*std::move(server));
    listener_ = *context_->listen("unix:");
    connect_both();
  }

  static void append(bytes& to, frame_kind kind, const bytes& body, std::uint64_t message = 0, std::uint64_t part = 0,
                     std::uint32_t code = 0) {
    const frame_head head{static_cast<std::uint32_t>(kind), code, message, part, body.size()};
    const auto* const raw = reinterpret_cast<const std::byte*>(&head);
    to.insert(to.end(), raw, raw + sizeof(head));
    to.insert(to.end(), body.begin(), body.end());
  }
  static bytes greeting(std::uint64_t ring_bytes = 0) {
    bytes out;
    append(out, frame_kind::hello, channel::encode(channel::hello{channel::wire_version, channel::own_identity(), ring_bytes}));
    const std::vector<channel::reached_channel> reach{{"xth", "no"},    {"cma", "no"},      {"basic", ""},   {"ucx", ""},
                                                      {"cuda_gdr", ""}, {"cuda_basic", ""}, {"cuda_ipc", ""}};
    append(out, frame_kind::reach, channel::encode(reach));
    return out;
  }
  // Of the first frame.
  static std::size_t greeting_bytes() {
    bytes out;
    append(out, frame_kind::hello, channel::encode(channel::hello{channel::wire_version, channel::own_identity()}));
    return out.size();
  }
  static bytes conversation(std::uint64_t ring_bytes = 0) {
    bytes out = greeting(ring_bytes);
    channel::announcement facts;
    facts.metadata = "hello";
    facts.payload_lengths = {3};
    facts.payload_metadata = {"p"};
    auto& first = facts.tensors.emplace_back();
    first.length = 40'000;
    first.metadata = "t";
    auto& second = facts.tensors.emplace_back();
    second.length = 20'000;
    second.device = "cuda:7";
    second.target_device = "cuda:1";
    second.parts = {{"no handle", 1, 0, 12'000, true}, {"another", 1, 4096, 8'000, false}};
    auto body = channel::encode(facts);
    body.resize(body.size() + 3);
    append(out, frame_kind::announcement, body, 1, 3);
    append(out, wanted_of_third, {}, 1, 0, 1);
    append(out, frame_kind::credit, {}, 0, 0, 1);
    append(out, line_frame, channel::encode(channel::line_offer{"", bytes(108)}), 0, 0, 0);
    append(out, line_frame, channel::encode(channel::line_offer{"host:0", bytes(10)}), 0, 0, 9);
    append(out, wanted_by_line_frame, channel::encode_tag(77), 2, 0, 0);
    append(out, sent_by_line_frame, {}, 1, 4711);
    append(out, sent_by_line_frame, channel::encode_text("no"), 1, 4712, 5);
    append(out, line_over_frame, channel::encode_text("no more"), 1, 9, 12);
    append(out, content_of_third, bytes(40'000), 1, 0);
    append(out, content_of_third, bytes(20'000), 1, 1);
    append(out, frame_kind::taken, channel::encode(std::vector<channel::carried>{{"basic", 1, 100'000}}), 1);
    append(out, frame_kind::withdrawn, channel::encode_text("no"), 2, 0, 12);
    append(out, posted_frame, posting(), 3, 1, 5);
    append(out, pushed_frame, {}, 9);
    return out;
  }
  static bytes posting(bool of_host = false) {
    channel::announcement facts;
    auto& target = facts.tensors.emplace_back();
    target.length = 20'000;
    if (!of_host) {
      target.device = "host:0";
      target.parts = {{"no handle", 1, 0, 20'000, false}};
    }
    return channel::encode(facts);
  }

  // The other end of the socket.
  static bool has_left(sys::peer& door, int socket) {
    std::array<std::byte, 4096> room{};
    const iovec into{room.data(), room.size()};
    for (;;) {
      const auto got = door.receive(socket, {&into, 1});
      if (!got) return got.error().code() != errc::would_block;
      if (*got == 0) return true;
    }
  }

  // Says all of it, with somebody receiving at the other end, and goes. socket_bytes: what is behind them goes through a ring.
  void say(const bytes& words, errc* ended_with = nullptr, std::size_t socket_bytes = ~std::size_t{0}) {
    penstock::pipe accepted;
    auto accepting = listener_.accept(accepted);
    const auto door = sys::linux_peer();
    const auto url = listener_.url();
    auto raw = door->connect({sys::socket_address::family::unix_abstract, url.substr(6), 0});
    ASSERT_TRUE(raw.ok()) << raw.error().message();
    const auto content = some_bytes(100'000, 1);
    receiver_left_ = has_begun_ = false;
    operation sending;
    std::thread receiver([&] {
      const auto outcome = accepting.wait();
      if (!outcome.ok()) {
        if (ended_with != nullptr) *ended_with = outcome.error.code();
        receiver_left_ = true;
        return;
      }
      sending = accepted.send({"", {}, {{content.data(), content.size()}}});
      has_begun_ = true;
      for (bool goes_on = true; goes_on;) {
        auto got = receive_from_limited(accepted);
        if (got.ok()) continue;
        const auto code = got.error.code();
        if (ended_with != nullptr) *ended_with = code;
        goes_on = code != errc::closed && code != errc::io && code != errc::unsupported;
      }
      receiver_left_ = true;
    });
    auto offered = door->make_region(channel::ring_pair::bytes);
    ASSERT_TRUE(offered.ok());
    channel::ring_pair ring(std::move(offered->memory), true);
    const int passed = offered->by.get();
    // What is said behind a whole greeting meets a message of the other end.
    const auto polite = greeting();
    const bool has_ring = socket_bytes < words.size();
    const bool greets = !has_ring && words.size() > polite.size() && std::equal(polite.begin(), polite.end(), words.begin());
    std::size_t said = 0;
    while (said < words.size()) {
      EXPECT_TRUE(!greets || said != polite.size() || comes_true([&] { return has_begun_.load(); }));
      const bool by_ring = said >= socket_bytes;
      const auto end = greets && said < polite.size() ? polite.size() : by_ring ? words.size() : std::min(words.size(), socket_bytes);
      const iovec part{const_cast<std::byte*>(words.data() + said), end - said};
      const auto sent =
          by_ring ? ring.out.write({&part, 1}) : door->send(raw->get(), {&part, 1}, std::span(&passed, said == 0 && has_ring ? 1 : 0));
      if (by_ring && ring.out.must_call()) {
        std::byte call{};
        const iovec one{&call, 1};
        (void)door->send(raw->get(), {&one, 1});
      }
      if (sent) {
        said += *sent;
      } else if (sent.error().code() != errc::would_block || receiver_left_) {
        break;
      } else {
        std::this_thread::yield();
      }
    }
    // One that has not greeted is dropped, and nobody is accepted.
    door->finish(raw->get(), false);
    EXPECT_TRUE(comes_true([&] { return accepting.done() || has_left(*door, raw->get()); }));
    accepting.cancel();
    *raw = sys::owned_descriptor();
    receiver.join();
    if (accepting.wait().ok()) (void)sending.wait();  // it ends: well, where the other end says that it has taken it
  }

  const std::shared_ptr<silent_fabric> fabric_ = std::make_shared<silent_fabric>();
  std::atomic<bool> receiver_left_{false};
  std::atomic<bool> has_begun_{false};

  // Tensors that claim to be larger than anything are not made room for.
  static io_result receive_from_limited(const penstock::pipe& from) {
    incoming_message message;
    if (auto came = from.next(message).wait(); !came.ok()) return came;
    std::uint64_t total = 0;
    for (const auto& each : message.tensors()) total += std::min<std::uint64_t>(each.length, 1 << 30);
    if (total > (1 << 22)) return {};
    std::vector<bytes> room;
    return message.receive(room_for(message, room)).wait();
  }
};

TEST_F(pipe_fuzz, what_was_sent_in_order_is_understood) { say(conversation()); }

TEST_F(pipe_fuzz, what_comes_by_a_ring_is_understood_and_ends_with_who_has_gone) {
  errc ended = errc::ok;
  say(conversation(channel::ring_pair::bytes), &ended, greeting_bytes());
  EXPECT_TRUE(ended == errc::closed || ended == errc::io) << "pieces may come before they were asked for";
  auto only_greets = greeting(channel::ring_pair::bytes);
  say(only_greets, &ended, greeting_bytes());
  EXPECT_EQ(ended, errc::closed);
}

TEST_F(pipe_fuzz, another_protocol_version_and_another_protocol_are_named) {
  errc ended = errc::ok;
  bytes words;
  append(words, frame_kind::hello, channel::encode(channel::hello{channel::wire_version + 1, channel::own_identity()}));
  say(words, &ended);
  EXPECT_EQ(ended, errc::unsupported);
  words.assign(4096, std::byte{'G'});
  say(words, &ended);
  EXPECT_EQ(ended, errc::cancelled) << "nobody was accepted";
}

TEST_F(pipe_fuzz, lengths_beyond_their_limits_end_the_pipe) {
  std::vector<frame_kind> kinds{frame_kind::announcement, frame_kind::taken, frame_kind::withdrawn,      frame_kind::credit,
                                frame_kind::hello,        frame_kind::reach, static_cast<frame_kind>(77)};
  // Of each channel, of one that is not in use and of one that there is none of; each kind that it has, and more.
  for (const std::uint8_t number : {0, 2, 3, 4, 5, 6, 99}) {
    for (std::uint8_t own = 0; own < 8; ++own) kinds.push_back(of_channel(number, own));
  }
  for (const auto kind : kinds) {
    auto words = greeting();
    const frame_head head{static_cast<std::uint32_t>(kind), 0, 1, 0, std::uint64_t{1} << 40};
    const auto* const raw = reinterpret_cast<const std::byte*>(&head);
    words.insert(words.end(), raw, raw + sizeof(head));
    errc ended = errc::ok;
    say(words, &ended);
    EXPECT_EQ(ended, errc::io) << static_cast<int>(kind);
  }
}

TEST_F(pipe_fuzz, what_is_posted_or_pushed_without_leave_ends_the_pipe) {
  channel::announcement facts;
  facts.tensors.emplace_back().length = 20'000;
  const auto says = [&](bool by_ring, const std::function<void(bytes&)>& what) {
    auto words = greeting(by_ring ? channel::ring_pair::bytes : 0);
    what(words);
    errc ended = errc::ok;
    say(words, &ended, by_ring ? greeting_bytes() : ~std::size_t{0});
    return ended;
  };
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, frame_kind::announcement, channel::encode(facts), 1, 0, 6); }), errc::io)
      << "pushed by a permit that was not given";
  EXPECT_EQ(says(false, [&](bytes& words) { append(words, posted_frame, posting(), 1, 1, 5); }), errc::io) << "without a ring";
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, posted_frame, posting(), 1, 1, 64); }), errc::io) << "no such permit";
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, posted_frame, posting(), 1, 1ULL << 30, 5); }), errc::io) << "no such turn";
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, posted_frame, posting(true), 1, 1, 5); }), errc::io) << "of the host";
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, posted_frame, bytes(30), 1, 1, 5); }), errc::io) << "malformed";
  EXPECT_EQ(says(true, [&](bytes& words) { append(words, posted_frame, posting(), 1, 1, 5); }), errc::closed) << "a right one";
}

TEST_F(pipe_fuzz, what_can_be_no_name_of_a_device_ends_the_pipe) {
  for (const auto& name :
       {std::string(65, 'x'), std::string("cuda 1"), std::string("cuda:1\n"), std::string("\xff"), std::string(1, '\0')}) {
    for (const bool of_target : {true, false}) {
      SCOPED_TRACE(name);
      channel::announcement facts;
      auto& tensor = facts.tensors.emplace_back();
      tensor.length = 100;
      (of_target ? tensor.target_device : tensor.device) = name;
      auto words = greeting();
      append(words, frame_kind::announcement, channel::encode(facts), 1);
      errc ended = errc::ok;
      say(words, &ended);
      EXPECT_EQ(ended, errc::io);
    }
  }
  EXPECT_TRUE(here_.send({"other pipes go on", {}, {}}).wait().ok());
}

TEST_F(pipe_fuzz, what_is_said_of_lines_out_of_turn_ends_the_pipe) {
  struct step {
    frame_kind kind;
    bytes body;
    std::uint64_t message, part;
    std::uint32_t code;
  };
  const auto offer = channel::encode(channel::line_offer{"", bytes(50)});
  const auto without_address = channel::encode(channel::line_offer{"cuda:0", {}});
  const auto tag = channel::encode_tag(5);
  const std::vector<std::vector<step>> wrong{
      {{line_ready_frame, bytes(50), 0, 0, 0}},
      {{line_over_frame, {}, 0, 0, 0}},
      {{line_over_frame, {}, 1, 0, 0}},
      {{line_frame, offer, 0, 0, 3}, {line_frame, offer, 0, 0, 3}},
      {{line_frame, without_address, 0, 0, 3}},
      {{line_frame, bytes(3), 0, 0, 3}},
      {{wanted_by_line_frame, bytes(7), 1, 0, 0}},
      {{wanted_by_line_frame, tag, 1, 0, 0}},
      {{line_frame, offer, 0, 0, 3}, {wanted_by_line_frame, tag, 1, 8, 3}},
      {{line_frame, channel::encode(channel::line_offer{"host:0", bytes(50)}), 0, 0, 3}, {wanted_by_line_frame, tag, 1, 0, 3}},
      {{line_frame, offer, 0, 0, 3}, {wanted_by_line_frame, tag, 1, 0, 3}, {wanted_by_line_frame, tag, 1, 0, 3}},
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    auto words = greeting();
    for (const auto& each : wrong[i]) append(words, each.kind, each.body, each.message, each.part, each.code);
    errc ended = errc::ok;
    say(words, &ended);
    EXPECT_EQ(ended, errc::io);
  }
  auto words = greeting();
  for (std::uint32_t i = 0; i < 100; ++i) append(words, line_frame, offer, 0, 0, i);  // more than there may be
  errc ended = errc::ok;
  say(words, &ended);
  EXPECT_EQ(ended, errc::io);
}

TEST_F(pipe_fuzz, any_bytes_changed_cut_or_added) {
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const bool by_ring = random() % 2 == 0;
    const auto good = conversation(by_ring ? channel::ring_pair::bytes : 0);
    auto words = good;
    const auto changes = random() % 4;
    for (unsigned i = 0; i < changes; ++i) {
      const auto at = random() % 3 == 0 ? random() % words.size() : random() % std::min<std::size_t>(words.size(), 700);
      words[at] = static_cast<std::byte>(random() % 3 == 0 ? 255 : random());
    }
    if (random() % 3 == 0) words.resize(random() % words.size());
    if (random() % 5 == 0) words.insert(words.end(), good.begin() + static_cast<std::ptrdiff_t>(random() % 200), good.end());
    say(words, nullptr, by_ring ? greeting_bytes() : ~std::size_t{0});
    if (HasFatalFailure()) return;
  }
  EXPECT_TRUE(here_.send({"other pipes go on", {}, {}}).wait().ok());
}

}  // namespace
}  // namespace penstock::testing
