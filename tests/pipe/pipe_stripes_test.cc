// The additional connections of a pipe: made, used, refused, lost and abused.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "channel/stripe_door.hpp"
#include "core/engine_core.hpp"
#include "pipe/faulty_peer.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/raw_end.hpp"
#include "pipe/server.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using channel::frame_kind;

// Of mpt, over the pipe's own connection.
constexpr auto connections_frame = of_channel(0, pieces_frames::connections);
constexpr auto wanted_frame = of_channel(0, pieces_frames::wanted);
constexpr auto content_frame = of_channel(0, pieces_frames::content);

// Counts what comes by each socket, refuses what it is told to, and cuts a connection.
class watching_peer final : public faulty_peer {
 public:
  std::atomic<int> refuse_listening_after{1 << 30};
  std::atomic<int> refuse_connecting_from{1 << 30};  // which of them
  std::atomic<int> refuse_connecting_to{1 << 30};
  std::atomic<std::size_t> cut_after{~std::size_t{0}};  // bytes, of the first further connection that brings so many

  result<sys::owned_descriptor> listen(const sys::socket_address& at) override {
    if (listened_++ >= refuse_listening_after) return refused();
    return faulty_peer::listen(at);
  }
  result<sys::owned_descriptor> connect(const sys::socket_address& to) override {
    const int nth = connected_++;
    if (nth >= refuse_connecting_from && nth <= refuse_connecting_to) return refused();
    return noted(faulty_peer::connect(to));
  }
  result<sys::owned_descriptor> accept(int listening) override { return noted(faulty_peer::accept(listening)); }
  result<std::size_t> receive(int fd, std::span<const iovec> parts, std::vector<sys::owned_descriptor>* passed) override {
    auto got = faulty_peer::receive(fd, parts, passed);
    const std::lock_guard guard(lock_);
    auto& bytes = received_[fd];
    bytes += got.value_or(0);
    if (fd != first_ && bytes >= cut_after) {
      cut_after = ~std::size_t{0};
      (void)::shutdown(fd, SHUT_RDWR);
    }
    return got;
  }
  // Sockets that have brought at least so much.
  std::size_t busy(std::uint64_t least) {
    const std::lock_guard guard(lock_);
    return static_cast<std::size_t>(
        std::count_if(received_.begin(), received_.end(), [&](const auto& each) { return each.second >= least; }));
  }

 private:
  result<sys::owned_descriptor> noted(result<sys::owned_descriptor> made) {
    const std::lock_guard guard(lock_);
    if (made && first_ < 0) first_ = made->get();
    return made;
  }
  static status refused() { return {errc::io, "refused by the test"}; }
  std::atomic<int> listened_{0};
  std::atomic<int> connected_{0};
  std::mutex lock_;  // guards what follows
  int first_ = -1;   // the pipe's own
  std::map<int, std::uint64_t> received_;
};

class pipe_stripes : public ::testing::Test {
 protected:
  static constexpr std::size_t large = 48 << 20;

  pipe_stripes() : engine_(*engine::create(engine_options{})) {}
  pipe_context context(const pipe_options& options, std::shared_ptr<sys::peer> door = sys::linux_peer()) {
    auto made = pipes::server::make(engine_.core(), std::move(door), options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return pipe_context(*std::move(made));
  }
  // here_: of who listens.
  void meet(const pipe_context& listens, const pipe_context& connects, const std::string& url = "tcp://127.0.0.1:0") {
    auto listener = listens.listen(url);
    ASSERT_TRUE(listener.ok()) << listener.error().message();
    listener_ = *std::move(listener);
    auto accepting = listener_.accept(here_);
    auto made = connects.connect(listener_.url());
    ASSERT_TRUE(made.ok()) << made.error().message();
    there_ = *std::move(made);
    ASSERT_TRUE(accepting.wait().ok());
  }
  // Until the further connections are there, which hold up nothing.
  static void expect_connections(const penstock::pipe& one, const penstock::pipe& other, unsigned count) {
    while (one.explain()->connections < count || other.explain()->connections < count) std::this_thread::yield();
    EXPECT_EQ(one.explain()->connections, count);
    EXPECT_EQ(other.explain()->connections, count);
  }
  static void expect_to_arrive(const penstock::pipe& from, const penstock::pipe& to, std::size_t size = large) {
    const auto content = some_bytes(size, 11);
    auto sent = from.send({"", {}, {{content.data(), content.size()}}});
    const auto got = receive_from(to);
    ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
    EXPECT_TRUE(got.tensors.front() == content);
    const auto outcome = sent.wait();
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
  }
  static std::string refusal_of(const penstock::pipe& of) {
    const auto plan = of.explain();
    for (const auto& each : plan.ok() ? plan->sending : std::vector<channel_choice>()) {
      if (each.name == "mpt") return each.refusal;
    }
    return "no such channel";
  }
  static std::uint64_t received_by(const std::string& name, const penstock::pipe& at) {
    for (const auto& each : at.stats()) {
      if (each.name == name) return each.received_bytes;
    }
    return 0;
  }

  engine engine_;
  pipe_listener listener_;
  penstock::pipe here_;
  penstock::pipe there_;
};

TEST_F(pipe_stripes, a_large_tensor_comes_over_all_connections_whoever_sends_and_nobody_need_be_in_accept) {
  for (const bool listener_sends : {true, false}) {
    for (const unsigned connections : {2U, 4U, 16U}) {
      SCOPED_TRACE(connections);
      const auto door = std::make_shared<watching_peer>();
      const auto both = context({.connections = connections}, door);
      meet(both, both);
      listener_ = pipe_listener();
      const auto& from = listener_sends ? here_ : there_;
      const auto& to = listener_sends ? there_ : here_;
      expect_to_arrive(from, to);
      expect_connections(here_, there_, connections);
      expect_to_arrive(from, to, 128 << 20);
      EXPECT_EQ(door->busy(1 << 20), connections);
      EXPECT_EQ(received_by("mpt", to), large + (128 << 20));
      expect_to_arrive(to, from);
      EXPECT_EQ(refusal_of(from), "");
    }
  }
}

TEST_F(pipe_stripes, they_lead_where_the_pipe_does_over_ipv6_too) {
  const auto door = sys::linux_peer();
  if (!door->listen({sys::socket_address::family::tcp, "::1", 0})) GTEST_SKIP() << "no IPv6 here";
  const auto both = context({});
  meet(both, both, "tcp://[::1]:0");
  expect_to_arrive(there_, here_);
  expect_connections(here_, there_, 4);
  expect_to_arrive(here_, there_);
}

TEST_F(pipe_stripes, both_addresses_of_a_connection_are_told_in_numbers) {
  const auto door = sys::linux_peer();
  auto listening = door->listen({sys::socket_address::family::tcp, "127.0.0.1", 0});
  ASSERT_TRUE(listening.ok());
  const auto port = *door->port_of(listening->get());
  auto made = door->connect({sys::socket_address::family::tcp, "127.0.0.1", port});
  ASSERT_TRUE(made.ok());
  auto come = door->accept(listening->get());
  while (!come) come = door->accept(listening->get());
  EXPECT_EQ(door->address_of(come->get(), false)->name, "127.0.0.1");
  EXPECT_EQ(door->address_of(come->get(), false)->port, port);
  EXPECT_EQ(door->address_of(made->get(), true)->port, port);
  EXPECT_EQ(door->address_of(come->get(), true)->port, door->address_of(made->get(), false)->port);
  const auto of_unix = door->listen({sys::socket_address::family::unix_abstract, "penstock-test-" + std::to_string(::getpid()), 0});
  ASSERT_TRUE(of_unix.ok());
  EXPECT_EQ(door->address_of(of_unix->get(), false).error().code(), errc::invalid_argument);
  EXPECT_EQ(door->address_of(listening->get(), true).error().native(), ENOTCONN);
}

TEST_F(pipe_stripes, small_tensors_need_no_further_connections) {
  const auto both = context({});
  meet(both, both);
  for (int i = 0; i < 20; ++i) expect_to_arrive(here_, there_, (1 << 20) - 1);
  EXPECT_EQ(here_.explain()->connections, 1U);
  EXPECT_EQ(there_.explain()->connections, 1U);
}

TEST_F(pipe_stripes, the_end_that_wants_fewer_has_its_way) {
  meet(context({.connections = 8}), context({.connections = 3}));
  expect_to_arrive(here_, there_);
  expect_connections(here_, there_, 3);
}

TEST_F(pipe_stripes, a_number_that_there_cannot_be_is_named) {
  for (const unsigned wrong : {0U, 17U, 1000U}) {
    const auto made = pipe_context::create(engine_, {.connections = wrong});
    EXPECT_EQ(made.error().code(), errc::invalid_argument);
    EXPECT_NE(made.error().message().find(std::to_string(wrong)), std::string_view::npos) << made.error().message();
  }
}

TEST_F(pipe_stripes, it_is_refused_in_words) {
  const auto expect = [&](const pipe_context& one, const pipe_context& other, const std::string& url, const std::string& mine,
                          const std::string& theirs) {
    meet(one, other, url);
    EXPECT_EQ(refusal_of(here_), mine);
    EXPECT_EQ(refusal_of(there_), theirs);
    expect_to_arrive(here_, there_, 3 << 20);
    EXPECT_EQ(received_by("mpt", there_), 0U);
    EXPECT_EQ(here_.explain()->connections, 1U);
  };
  const auto four = context({});
  expect(four, four, "unix:", "a pipe within one host needs no further connections", "a pipe within one host needs no further connections");
  // What an end says of sending is what the other says of receiving.
  expect(four, context({.connections = 1}), "tcp://127.0.0.1:0", "this process is limited to one connection",
         "the peer is limited to one connection");
  expect(four, context({.channels = {"basic"}}), "tcp://127.0.0.1:0", "the peer does not use it", "no such channel");
}

TEST_F(pipe_stripes, with_a_secret_they_need_none_of_their_own) {
  const auto knows = context({.secret = "correct horse battery staple"});
  meet(knows, knows, "tcp://0.0.0.0:0");
  expect_to_arrive(there_, here_);
  expect_connections(here_, there_, 4);
  expect_to_arrive(here_, there_);
}

TEST_F(pipe_stripes, where_none_can_be_made_all_goes_over_the_pipes_own_and_it_is_told_why) {
  const auto deaf = std::make_shared<watching_peer>();
  deaf->refuse_listening_after = 1;
  const auto lame = std::make_shared<watching_peer>();
  lame->refuse_connecting_from = 1;
  for (const bool listener_fails : {true, false}) {
    const auto good = context({});
    const auto bad = context({}, listener_fails ? deaf : lame);
    meet(listener_fails ? bad : good, listener_fails ? good : bad);
    expect_to_arrive(here_, there_);
    while (refusal_of(here_).empty() || refusal_of(there_).empty()) std::this_thread::yield();
    for (const auto& each : {refusal_of(here_), refusal_of(there_)}) {
      EXPECT_NE(each.find("refused by the test"), std::string::npos) << each;
      EXPECT_NE(each.find("no further connections could be made"), std::string::npos) << each;
    }
    EXPECT_EQ(here_.explain()->connections, 1U);
    const auto by_basic = received_by("basic", there_);
    expect_to_arrive(here_, there_);
    EXPECT_EQ(received_by("basic", there_), by_basic + large) << "from then on it is called what it is";
    expect_to_arrive(there_, here_);
  }
}

TEST_F(pipe_stripes, where_some_can_be_made_those_are_used) {
  const auto lame = std::make_shared<watching_peer>();
  lame->refuse_connecting_from = 2;
  lame->refuse_connecting_to = 2;
  meet(context({}), context({}, lame));
  expect_to_arrive(here_, there_);
  expect_connections(here_, there_, 3);
  expect_to_arrive(there_, here_);
  EXPECT_EQ(refusal_of(here_), "");
}

TEST_F(pipe_stripes, the_loss_of_one_ends_the_pipe_at_both_ends_and_is_named) {
  for (const bool listener_sends : {true, false}) {
    const auto door = std::make_shared<watching_peer>();
    const auto good = context({});
    const auto cut = context({}, door);
    meet(listener_sends ? good : cut, listener_sends ? cut : good);
    const auto& from = listener_sends ? here_ : there_;
    const auto& to = listener_sends ? there_ : here_;
    expect_to_arrive(from, to);
    expect_connections(here_, there_, 4);
    door->cut_after = 32 << 20;
    const auto content = some_bytes(256 << 20, 1);
    auto sent = from.send({"", {}, {{content.data(), content.size()}}});
    incoming_message message;
    incoming_message never;
    auto waiting = from.next(never);
    ASSERT_TRUE(to.next(message).wait().ok());
    std::vector<bytes> room;
    const auto received = message.receive(room_for(message, room)).wait();
    const auto outcome = sent.wait();
    EXPECT_EQ(received.error.code(), errc::closed) << received.error.message();
    EXPECT_EQ(outcome.error.code(), errc::closed) << outcome.error.message();
    const auto ended = waiting.wait();
    EXPECT_EQ(ended.error.code(), errc::closed);
    for (const auto& pipe : {&here_, &there_}) {
      incoming_message none;
      const auto told = pipe->next(none).wait();
      EXPECT_NE(told.error.message().find("of 4"), std::string_view::npos) << told.error.message();
      EXPECT_NE(told.error.message().find("process"), std::string_view::npos) << told.error.message();
    }
  }
}

TEST_F(pipe_stripes, what_was_said_before_a_close_arrives_and_nothing_is_said_to_be_lost) {
  const auto both = context({});
  for (int i = 0; i < 20; ++i) {
    meet(both, both);
    expect_to_arrive(here_, there_, 8 << 20);
    expect_connections(here_, there_, 4);
    ASSERT_TRUE(here_.send({"last words", {}, {}}).wait().ok());
    here_ = penstock::pipe();
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
    EXPECT_EQ(come.metadata(), "last words");
    const auto ended = there_.next(come).wait();
    EXPECT_EQ(ended.error.code(), errc::closed);
    EXPECT_EQ(ended.error.message().find("lost first"), std::string_view::npos) << ended.error.message();
  }
}

TEST_F(pipe_stripes, a_receive_that_is_cancelled_in_the_middle_leaves_its_memory_alone) {
  const auto both = context({});
  meet(both, both);
  expect_to_arrive(here_, there_);
  expect_connections(here_, there_, 4);
  const auto content = some_bytes(64 << 20, 1);
  int stopped = 0;
  for (int i = 0; i < 12; ++i) {
    auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
    incoming_message come;
    ASSERT_TRUE(there_.next(come).wait().ok());
    std::vector<bytes> room;
    auto receiving = come.receive(room_for(come, room));
    std::this_thread::sleep_for(std::chrono::microseconds(i * 700));
    (i % 2 == 0 ? receiving : sent).cancel();
    const auto outcome = receiving.wait();
    (void)sent.wait();
    if (outcome.ok()) continue;
    ++stopped;
    std::fill(room.front().begin(), room.front().end(), std::byte{7});
    expect_to_arrive(here_, there_, 20 << 20);
    EXPECT_TRUE(room.front() == bytes(content.size(), std::byte{7}));
  }
  EXPECT_GT(stopped, 0);
}

// --- ends that speak by hand

class striped_end : public pipe_stripes {
 protected:
  static constexpr std::size_t length = 12 << 20;  // of the tensor that it announces, in three pieces
  static constexpr std::size_t piece = 4 << 20;

  // raw_ has connected to here_, and announced a tensor that here_ receives into room_.
  void begin(std::uint32_t connections = 3) {
    auto listener = context({.connections = connections}).listen("tcp://127.0.0.1:0");
    ASSERT_TRUE(listener.ok());
    listener_ = *std::move(listener);
    auto accepting = listener_.accept(here_);
    raw_.emplace(raw_end::port_of(listener_.url()));
    raw_->greet(connections);
    ASSERT_TRUE(accepting.wait().ok());
    ASSERT_TRUE(raw_->hear_of(frame_kind::reach));
    raw_->say(connections_frame);
    const auto offered = raw_->hear_of(connections_frame);
    ASSERT_TRUE(offered);
    auto offer = channel::decode_stripe_offer(offered->body);
    ASSERT_TRUE(offer.ok()) << offer.error().message();
    offer_ = *offer;
    ASSERT_EQ(offer_.tokens.size(), connections - 1);
    raw_->announce(1, length);
    ASSERT_TRUE(here_.next(message_).wait().ok());
    room_.assign(length, std::byte{9});
    receiving_ = message_.receive({{room_.data(), room_.size()}});
    for (std::uint32_t i = 0; i < 3; ++i) {
      const auto wanted = raw_->hear_of(wanted_frame);
      ASSERT_TRUE(wanted);
      EXPECT_EQ(wanted->head.code, i);
    }
  }
  static bytes token(const channel::stripe_offer& of, std::size_t index) { return {of.tokens[index].begin(), of.tokens[index].end()}; }
  raw_end join(std::size_t index) {
    raw_end made(offer_.port);
    made.say(joins_frame, token(offer_, index));
    const auto answer = made.hear();
    EXPECT_TRUE(answer && answer->kind() == joins_frame && answer->head.length == 0);
    return made;
  }

  std::optional<raw_end> raw_;
  channel::stripe_offer offer_;
  incoming_message message_;
  bytes room_;
  operation receiving_;
};

TEST_F(striped_end, pieces_may_come_in_any_order_over_any_connection) {
  begin();
  auto first = join(1);
  auto second = join(0);
  const auto content = some_bytes(length, 4);
  const auto part = [&](std::size_t at) { return bytes(content.begin() + at * piece, content.begin() + (at + 1) * piece); };
  second.say(piece_frame, part(2), 1, 0, 2);
  raw_->say(content_frame, part(1), 1, 0, 1);
  first.say(piece_frame, part(0), 1, 0, 0);
  EXPECT_TRUE(receiving_.wait().ok());
  EXPECT_TRUE(room_ == content);
  EXPECT_TRUE(raw_->hear_of(frame_kind::taken));
  EXPECT_EQ(here_.explain()->connections, 3U);
}

TEST_F(striped_end, a_wrong_token_and_one_that_was_used_are_shut_out_without_a_word) {
  begin();
  auto good = join(0);
  for (const auto& wrong :
       {raw_end::frame(joins_frame, token(offer_, 0)), raw_end::frame(joins_frame, bytes(32)),
        raw_end::frame(frame_kind::hello, token(offer_, 1)), raw_end::frame(joins_frame, bytes(64)), bytes(64, std::byte{255})}) {
    raw_end stranger(offer_.port);
    stranger.write(wrong);
    EXPECT_TRUE(stranger.hears_nothing());
  }
  auto other = join(1);
  EXPECT_FALSE(receiving_.done());
  EXPECT_EQ(here_.explain()->connections, 3U);
  // When all have come the port is closed.
  const auto door = sys::linux_peer();
  auto late = door->connect({sys::socket_address::family::tcp, "127.0.0.1", offer_.port});
  if (late.ok()) {
    raw_end stranger(raw_end::port_of(listener_.url()));
    std::byte byte{};
    const iovec into{&byte, 1};
    auto got = door->receive(late->get(), {&into, 1});
    while (!got && got.error().code() == errc::would_block) got = door->receive(late->get(), {&into, 1});
    EXPECT_FALSE(got.ok() && *got > 0);
  }
}

TEST_F(striped_end, strangers_who_wait_hold_up_nobody_and_are_so_many_at_most) {
  begin();
  std::vector<raw_end> strangers;
  for (std::size_t i = 0; i < 2 * channel::stripe_door::most_strangers; ++i) {
    strangers.emplace_back(offer_.port);
    if (i % 2 == 0) strangers.back().write(bytes(40, std::byte{1}));
  }
  auto first = join(0);
  // Which of them it turns away depends on what it has read by then.
  const auto those_left = [&] {
    return std::count_if(strangers.begin(), strangers.end(), [](const auto& each) { return each.is_left(); });
  };
  EXPECT_TRUE(comes_true([&] { return those_left() >= static_cast<std::ptrdiff_t>(channel::stripe_door::most_strangers); }));
  auto second = join(1);
  for (auto& each : strangers) EXPECT_TRUE(each.hears_nothing()) << "the door is closed";
  EXPECT_EQ(here_.explain()->connections, 3U);
  EXPECT_FALSE(receiving_.done());
}

TEST_F(striped_end, what_nobody_has_asked_for_ends_the_pipe_and_is_written_nowhere) {
  struct wrong_piece {
    const char* what;
    std::uint64_t part;
    std::uint32_t code;
    std::size_t bytes;
    frame_kind kind = piece_frame;
  };
  for (const auto& each :
       {wrong_piece{"another tensor", 1, 0, piece}, wrong_piece{"no such piece", 0, 3, piece}, wrong_piece{"no such number", 0, ~0U, piece},
        wrong_piece{"a shorter one", 0, 1, piece - 1}, wrong_piece{"a longer one", 0, 1, piece + 1}, wrong_piece{"an empty one", 0, 1, 0},
        wrong_piece{"one of the other kind", 0, 0, piece, of_channel(1, pieces_frames::content)},
        wrong_piece{"a message", 0, 0, 10, frame_kind::announcement}, wrong_piece{"another answer", 0, 0, 0, joins_frame},
        wrong_piece{"no kind", 0, 0, 5, static_cast<frame_kind>(99)}}) {
    for (const bool over_own : {false, true}) {
      if (over_own && (each.kind == frame_kind::announcement || each.kind == joins_frame)) continue;
      SCOPED_TRACE(std::string(each.what) + (over_own ? " over the pipe's own connection" : ""));
      begin();
      auto stripe = join(0);
      (over_own ? *raw_ : stripe)
          .say(over_own && each.kind == piece_frame ? content_frame : each.kind, bytes(each.bytes), 1, each.part, each.code);
      const auto outcome = receiving_.wait();
      EXPECT_EQ(outcome.error.code(), errc::io) << outcome.error.message();
      EXPECT_TRUE(over_own || outcome.error.message().find("connection 2 of 3") != std::string_view::npos) << outcome.error.message();
      EXPECT_TRUE(room_ == bytes(length, std::byte{9}));
      EXPECT_FALSE(here_.send({}).wait().ok());
      EXPECT_TRUE(over_own || !raw_->hear_of(content_frame)) << "the other end hears that it has ended";
      message_ = {};
    }
  }
}

TEST_F(striped_end, a_piece_that_comes_twice_ends_the_pipe) {
  for (const bool at_once : {true, false}) {
    begin();
    auto one = join(0);
    auto other = join(1);
    const auto frame = raw_end::frame(piece_frame, bytes(piece, std::byte{5}), 1, 0, 1);
    if (at_once) {  // the first is still coming
      one.write({frame.begin(), frame.begin() + 1000});
      one.write({frame.begin() + 1000, frame.begin() + 2000});
      std::this_thread::sleep_for(5ms);
    } else {
      one.write(frame);
    }
    other.write(frame);
    if (at_once) one.write({frame.begin() + 2000, frame.end()});
    const auto outcome = receiving_.wait();
    EXPECT_EQ(outcome.error.code(), errc::io) << outcome.error.message();
    EXPECT_TRUE(std::all_of(room_.begin(), room_.begin() + piece, [](auto each) { return each == std::byte{9}; }));
    message_ = {};
  }
}

TEST_F(striped_end, pieces_that_it_asks_for_out_of_turn_end_the_pipe) {
  for (const std::uint32_t code : {1U, ~0U}) {
    begin();
    const auto content = some_bytes(length, 1);
    auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
    const auto announced = raw_->hear_of(frame_kind::announcement);
    ASSERT_TRUE(announced);
    raw_->say(wanted_frame, {}, announced->head.message, 0, code);
    EXPECT_EQ(sent.wait().error.code(), errc::io);
    EXPECT_EQ(receiving_.wait().error.code(), errc::io);
    message_ = {};
  }
}

// One that has said it would have none, and then speaks of them.
TEST_F(striped_end, where_none_were_agreed_on_word_of_them_ends_the_pipe) {
  const auto content = some_bytes(length, 1);
  for (const std::uint32_t connections : {0U, 1U, 4U}) {
    for (const auto kind : {connections_frame, wanted_frame, content_frame}) {
      SCOPED_TRACE(std::to_string(connections) + " connections, kind " + std::to_string(static_cast<int>(kind)));
      auto listener = context(connections == 4 ? pipe_options{.connections = 1} : pipe_options{}).listen("tcp://127.0.0.1:0");
      ASSERT_TRUE(listener.ok());
      auto accepting = listener->accept(here_);
      raw_end raw(raw_end::port_of(listener->url()));
      raw.greet(connections);
      ASSERT_TRUE(accepting.wait().ok());
      auto sent = here_.send({"", {}, {{content.data(), content.size()}}});
      const auto announced = raw.hear_of(frame_kind::announcement);
      ASSERT_TRUE(announced);
      // Of a piece out of turn, since there is no harm in one that is in turn.
      raw.say(kind, bytes(kind == piece_frame ? 10 : 0), announced->head.message, 0, kind == wanted_frame ? 1 : 0);
      if (kind == piece_frame) raw.leave();
      const auto outcome = sent.wait();
      EXPECT_EQ(outcome.error.code(), kind == piece_frame ? errc::closed : errc::io) << outcome.error.message();
    }
  }
}

TEST_F(striped_end, an_offer_that_holds_nothing_is_an_error_and_one_that_leads_nowhere_a_refusal) {
  const auto door = sys::linux_peer();
  auto nobody = door->listen({sys::socket_address::family::tcp, "127.0.0.1", 0});
  ASSERT_TRUE(nobody.ok());
  const auto port = *door->port_of(nobody->get());
  *nobody = sys::owned_descriptor();
  const auto connects = context({});
  for (int what = 0; what < 5; ++what) {
    SCOPED_TRACE(what);
    auto listening = door->listen({sys::socket_address::family::tcp, "127.0.0.1", 0});
    ASSERT_TRUE(listening.ok());
    there_ = *connects.connect("tcp://127.0.0.1:" + std::to_string(*door->port_of(listening->get())));
    auto come = door->accept(listening->get());
    while (!come) come = door->accept(listening->get());
    raw_end raw(*std::move(come));
    raw.greet(4);
    ASSERT_TRUE(raw.hear_of(frame_kind::reach));
    channel::stripe_offer offer{port, std::vector<sys::digest>(what == 1 ? 4 : 3)};
    auto body = channel::encode(offer);
    if (what == 2) body.pop_back();
    if (what == 3) body[0] = body[1] = std::byte{0};
    raw.say(connections_frame, body);
    if (what == 4) raw.say(connections_frame, body);
    incoming_message none;
    if (what > 0) {
      EXPECT_EQ(there_.next(none).wait().error.code(), errc::io);
      continue;
    }
    const auto told = raw.hear_of(connections_frame);
    ASSERT_TRUE(told);
    EXPECT_NE(told->head.code, 0U);
    EXPECT_NE(refusal_of(there_).find("connection"), std::string::npos) << refusal_of(there_);
    raw.say(frame_kind::announcement, channel::encode(channel::announcement{}), 1);
    EXPECT_TRUE(there_.next(none).wait().ok()) << "the pipe goes on";
  }
}

// Whatever comes over them, everything ends, and what is well is right.
TEST_F(striped_end, any_bytes_changed_cut_or_added) {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    begin();
    if (HasFatalFailure()) return;
    std::array<bytes, 3> words;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const auto which = random() % 3;
      words[which] = raw_end::frame(which == 0 ? content_frame : piece_frame, bytes(piece, std::byte{1}), 1, 0, i);
    }
    for (std::size_t i = 1; i < 3; ++i) {
      auto joins = raw_end::frame(joins_frame, token(offer_, i - 1));
      words[i].insert(words[i].begin(), joins.begin(), joins.end());
    }
    for (auto& each : words) {
      const std::size_t heads = sizeof(channel::frame_head) * (&each == words.data() ? 1 : 3);  // what is behind them is content
      const auto changes = random() % 3;
      for (unsigned i = 0; i < changes && each.size() >= heads; ++i) each[random() % heads] = static_cast<std::byte>(random());
      if (random() % 3 == 0) each.resize(random() % (each.size() + 1));
      if (random() % 4 == 0) each.insert(each.end(), words[0].begin(), words[0].begin() + static_cast<std::ptrdiff_t>(words[0].size() / 2));
    }
    {
      raw_end first(offer_.port);
      raw_end second(offer_.port);
      const auto over = [&] { return receiving_.done(); };
      std::thread other([&] { first.write(words[1], over); });
      std::thread third([&] { second.write(words[2], over); });
      raw_->write(words[0], over);
      other.join();
      third.join();
    }
    raw_->leave();
    if (receiving_.wait().ok()) {
      EXPECT_TRUE(room_ == bytes(length, std::byte{1}));
    }
    message_ = {};
    here_ = penstock::pipe();
  }
}

}  // namespace
}  // namespace penstock::testing
