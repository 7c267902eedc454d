// tcp with a secret: only peers that know it are accepted.
#include <atomic>
#include <thread>

#include "channel/connection.hpp"
#include "channel/proof.hpp"
#include "channel/wire.hpp"
#include "pipe/pipe_fixture.hpp"
#include "sys/peer.hpp"
#include "sys/secret.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

const std::string secret = "correct horse battery staple";

class pipe_secret : public ::testing::Test {
 protected:
  pipe_secret() : engine_(*engine::create(engine_options{})) {}
  pipe_context context(const std::string& knows) {
    auto made = pipe_context::create(engine_, {.secret = knows});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  static std::uint16_t port_of(const pipe_listener& listener) {
    const auto url = listener.url();
    return static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  }
  // Where somebody is waited for, on this machine.
  struct watched_door {
    explicit watched_door(const pipe_context& by) {
      auto made = by.listen("tcp://127.0.0.1:0");
      EXPECT_TRUE(made.ok()) << made.error().message();
      listener = *std::move(made);
      accepting = listener.accept(here);
    }
    void expect_to_let_in(const pipe_context& who) {
      auto there = who.connect(listener.url());
      ASSERT_TRUE(there.ok());
      ASSERT_TRUE(accepting.wait().ok());
      EXPECT_TRUE(there->send({"hello", {}, {}}).wait().ok());
      incoming_message come;
      ASSERT_TRUE(here.next(come).wait().ok());
      EXPECT_EQ(come.metadata(), "hello");
    }
    pipe_listener listener;
    penstock::pipe here;
    operation accepting;
  };
  engine engine_;
};

// RFC 4231, test cases 1 and 2; and a key longer than a block.
TEST_F(pipe_secret, the_digest_is_hmac_sha256) {
  const auto hex = [](const std::string& key, const std::string& data) {
    const auto made = sys::hmac_sha256(key, std::as_bytes(std::span(data)));
    EXPECT_TRUE(made.ok());
    std::string told;
    for (const auto each : *made) {
      constexpr const char* digits = "0123456789abcdef";
      told += digits[std::to_integer<unsigned>(each) >> 4];
      told += digits[std::to_integer<unsigned>(each) & 15];
    }
    return told;
  };
  EXPECT_EQ(hex(std::string(20, '\x0b'), "Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex("Jefe", "what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_F(pipe_secret, ends_that_know_it_speak_and_the_address_need_not_be_loopback) {
  const auto knows = context(secret);
  auto listener = knows.listen("tcp://0.0.0.0:0");
  ASSERT_TRUE(listener.ok()) << listener.error().message();
  penstock::pipe here;
  auto accepting = listener->accept(here);
  auto there = knows.connect("tcp://127.0.0.1:" + std::to_string(port_of(*listener)));
  ASSERT_TRUE(there.ok());
  ASSERT_TRUE(accepting.wait().ok());
  const auto content = some_bytes(3 << 20, 1);
  auto sent = there->send({"known", {}, {{content.data(), content.size()}}});
  const auto got = receive_from(here);
  ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
  EXPECT_EQ(got.tensors.front(), content);
  EXPECT_TRUE(sent.wait().ok());
}

TEST_F(pipe_secret, who_does_not_know_it_is_told_so_and_takes_nobody_s_place) {
  const auto knows = context(secret);
  watched_door door(knows);
  for (const std::string& wrong : {std::string("a secret of somebody else"), std::string()}) {
    auto stranger = context(wrong).connect(door.listener.url());
    ASSERT_TRUE(stranger.ok());
    incoming_message never;
    const auto outcome = stranger->next(never).wait();
    EXPECT_EQ(outcome.error.code(), errc::permission_denied) << outcome.error.message();
    EXPECT_NE(outcome.error.message().find("secret"), std::string_view::npos) << outcome.error.message();
    EXPECT_FALSE(stranger->send({}).wait().ok());
  }
  EXPECT_FALSE(door.accepting.wait_for(20ms));
  door.expect_to_let_in(knows);
}

TEST_F(pipe_secret, who_listens_must_know_it_too) {
  watched_door door(context(""));
  auto there = context(secret).connect(door.listener.url());
  ASSERT_TRUE(there.ok());
  incoming_message never;
  EXPECT_EQ(there->next(never).wait().error.code(), errc::permission_denied);
  ASSERT_TRUE(door.accepting.wait().ok());
  EXPECT_FALSE(door.here.next(never).wait().ok());
}

// What a stranger could record, and what he could send back.
TEST_F(pipe_secret, proofs_hold_for_their_challenges_and_their_end_alone) {
  auto one = *channel::proof::make(secret, true);
  auto other = *channel::proof::make(secret, false);
  EXPECT_EQ(one.check(one.challenge()).code(), errc::permission_denied) << "before it was challenged";
  ASSERT_TRUE(one.challenged(other.challenge()).ok());
  ASSERT_TRUE(other.challenged(one.challenge()).ok());
  EXPECT_EQ(one.challenged(other.challenge()).code(), errc::io) << "twice";
  const auto answer = *other.answer();
  EXPECT_TRUE(one.check(answer).ok());
  EXPECT_TRUE(other.check(*one.answer()).ok());
  EXPECT_EQ(one.check(*one.answer()).code(), errc::permission_denied) << "its own, sent back";
  auto later = *channel::proof::make(secret, true);
  ASSERT_TRUE(later.challenged(other.challenge()).ok());
  EXPECT_EQ(later.check(answer).code(), errc::permission_denied) << "of another time";
  EXPECT_EQ(one.check({answer.data(), 31}).code(), errc::permission_denied);
}

// Strangers who say nothing hold up nobody, however many.
TEST_F(pipe_secret, strangers_who_wait_hold_up_nobody) {
  const auto knows = context(secret);
  watched_door watched(knows);
  const auto door = sys::linux_peer();
  std::vector<sys::owned_descriptor> strangers;
  for (int i = 0; i < 200; ++i) {
    auto made = door->connect({sys::socket_address::family::tcp, "127.0.0.1", port_of(watched.listener)});
    ASSERT_TRUE(made.ok());
    strangers.push_back(*std::move(made));
  }
  watched.expect_to_let_in(knows);
  // One who skips the proof, with a greeting and with a message, is not answered but refused.
  penstock::pipe none;
  auto next = watched.listener.accept(none);
  for (const auto kind : {channel::frame_kind::hello, channel::frame_kind::announcement, channel::frame_kind::proof}) {
    auto raw = door->connect({sys::socket_address::family::tcp, "127.0.0.1", port_of(watched.listener)});
    ASSERT_TRUE(raw.ok());
    auto body = kind == channel::frame_kind::proof ? std::vector<std::byte>(32) : channel::encode(channel::hello{});
    const channel::frame_head head{static_cast<std::uint32_t>(kind), 0, 0, 0, body.size()};
    const std::array<iovec, 2> parts{iovec{const_cast<channel::frame_head*>(&head), sizeof(head)}, iovec{body.data(), body.size()}};
    while (!door->send(raw->get(), parts)) std::this_thread::yield();
    bytes heard(1000);
    const iovec into{heard.data(), heard.size()};
    for (bool ended = false; !ended;) {
      const auto got = door->receive(raw->get(), {&into, 1});
      ended = got ? *got == 0 : got.error().code() != errc::would_block;
    }
  }
  EXPECT_FALSE(next.wait_for(20ms));
}

TEST_F(pipe_secret, one_that_is_too_short_is_refused_and_without_one_only_loopback_is_listened_at) {
  EXPECT_EQ(pipe_context::create(engine_, {.secret = "too short"}).error().code(), errc::invalid_argument);
  EXPECT_EQ(context("").listen("tcp://0.0.0.0:0").error().code(), errc::permission_denied);
}

}  // namespace
}  // namespace penstock::testing
