// Unauthorized connections: silent, slow, lying, and many. They get no data, hold no resources, and block no authorized peer.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "channel/proof.hpp"
#include "channel/wire.hpp"
#include "core/engine_core.hpp"
#include "pipe/faulty_peer.hpp"
#include "pipe/peer_process.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/raw_end.hpp"
#include "pipe/server.hpp"
#include "support/descriptor_limit.hpp"
#include "support/open_descriptors.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;

const std::string known_secret = "correct horse battery staple";

class pipe_strangers : public ::testing::Test {
 protected:
  pipe_strangers() : engine_(*engine::create(engine_options{})) {}
  pipe_context context(const pipe_options& options, const std::shared_ptr<sys::peer>& door = sys::linux_peer()) {
    auto made = pipes::server::make(engine_.core(), door, options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return pipe_context(*std::move(made));
  }
  // Listens, and waits for one who knows the secret.
  void open_door(const pipe_context& by, const std::string& url = "tcp://127.0.0.1:0") {
    auto made = by.listen(url);
    ASSERT_TRUE(made.ok()) << made.error().message();
    listener_ = *std::move(made);
    accepting_ = listener_.accept(here_);
  }
  // A pipe of each kind that a test makes while descriptors are used up: UBSan makes a pipe(2) to look at the type of an object that it has
  // not met before, and takes it for a wrong one where it cannot. Returns when it has given back its descriptors, which its threads do.
  static void meet_all_types(const pipe_context& by, const std::string& url) {
    auto listener = by.listen(url);
    ASSERT_TRUE(listener.ok());
    const auto before = open_descriptors();
    {
      penstock::pipe here;
      auto accepting = listener->accept(here);
      auto there = by.connect(listener->url());
      ASSERT_TRUE(there.ok());
      EXPECT_TRUE(accepting.wait().ok());
      EXPECT_TRUE(there->explain().ok());
    }
    // Fewer, where an earlier pipe's thread had not yet given back all when they were counted.
    EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before; })) << open_descriptors() << " of " << before;
  }
  static void expect_to_accept_once_there_are_descriptors(const pipe_context& by, const std::string& url) {
    meet_all_types(by, url);
    auto listener = by.listen(url);
    ASSERT_TRUE(listener.ok());
    auto there = by.connect(listener->url());
    ASSERT_TRUE(there.ok());
    descriptor_limit none(200);
    none.take_all();
    penstock::pipe here;
    auto accepting = listener->accept(here);
    EXPECT_FALSE(accepting.wait_for(20ms));
    none.give_back();
    const auto outcome = accepting.wait();
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_TRUE(there->explain().ok());
  }
  [[nodiscard]] std::uint16_t port() const { return raw_end::port_of(listener_.url()); }
  void expect_to_let_in(const pipe_context& who) {
    auto there = who.connect(listener_.url());
    ASSERT_TRUE(there.ok()) << there.error().message();
    ASSERT_TRUE(accepting_.wait().ok());
    EXPECT_TRUE(there->send({"hello", {}, {}}).wait().ok());
    incoming_message come;
    ASSERT_TRUE(here_.next(come).wait().ok());
    EXPECT_EQ(come.metadata(), "hello");
  }

  engine engine_;
  pipe_listener listener_;
  penstock::pipe here_;
  operation accepting_;
};

TEST_F(pipe_strangers, who_says_nothing_in_time_is_gone_and_leaves_nothing) {
  const auto by = context({.secret = known_secret, .prove_within = 20ms});
  open_door(by);
  const auto before = open_descriptors();
  std::vector<raw_end> strangers;
  for (int i = 0; i < 60; ++i) strangers.emplace_back(port());
  EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before + strangers.size(); })) << open_descriptors() - before;
  for (auto& each : strangers) EXPECT_TRUE(each.hears_nothing());
  EXPECT_FALSE(accepting_.wait_for(1ms));
}

// Health checks, port scanners, browsers: what each says before it goes.
TEST_F(pipe_strangers, those_who_are_no_pipes_take_no_accept_from_one) {
  const std::string request = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
  const auto* const text = reinterpret_cast<const std::byte*>(request.data());
  const channel::hello hello{channel::wire_version, channel::own_identity()};
  const auto greeting = raw_end::frame(channel::frame_kind::hello, channel::encode(hello));
  const std::vector<bytes> said{
      {}, {std::byte{0}}, bytes(text, text + request.size()), bytes(4096, std::byte{'x'}), bytes(greeting.begin(), greeting.end() - 1)};
  for (const std::string url : {"unix:", "tcp://127.0.0.1:0"}) {
    SCOPED_TRACE(url);
    const auto by = context({});
    open_door(by, url);
    const bool local = url == "unix:";
    const auto at = local ? sys::socket_address{sys::socket_address::family::unix_abstract, listener_.url().substr(6), 0}
                          : sys::socket_address{sys::socket_address::family::tcp, "127.0.0.1", port()};
    raw_end silent(*sys::linux_peer()->connect(at));
    for (const auto& words : said) {
      raw_end stranger(*sys::linux_peer()->connect(at));
      (void)stranger.write(words);
    }
    EXPECT_FALSE(accepting_.wait_for(1ms));
    expect_to_let_in(by);
    EXPECT_EQ(listener_.refused(), 0U);
  }
}

TEST_F(pipe_strangers, who_speaks_slowly_has_no_more_time_than_others) {
  const auto by = context({.secret = known_secret, .prove_within = 30ms});
  open_door(by);
  const auto before = open_descriptors();
  {
    const bytes challenge = raw_end::frame(channel::frame_kind::challenge, bytes(channel::proof::bytes));
    raw_end slow(port());
    raw_end half(port());
    EXPECT_TRUE(half.write(challenge));
    for (std::size_t at = 0; at < challenge.size() && slow.write({challenge[at]}); ++at) std::this_thread::sleep_for(2ms);
    EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before + 2; })) << open_descriptors() << " of " << before;
  }
  EXPECT_FALSE(accepting_.wait_for(1ms));
}

TEST_F(pipe_strangers, there_are_only_so_many_and_who_knows_the_secret_gets_in_beside_them) {
  const auto by = context({.secret = known_secret, .prove_within = 60s});
  const descriptor_limit few(400);  // a quarter of which strangers may have
  open_door(by);
  const auto before = open_descriptors();
  std::vector<raw_end> strangers;
  for (int i = 0; i < 150; ++i) strangers.emplace_back(port());
  expect_to_let_in(by);
  EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before + strangers.size() + 100 + 2; })) << open_descriptors();
  listener_ = pipe_listener();
  for (auto& each : strangers) EXPECT_TRUE(each.hears_nothing());
}

TEST_F(pipe_strangers, accept_waits_on_while_the_process_has_no_descriptor_left) {
  const auto at_rest = open_descriptors();
  for (const auto& url : {"unix:", "tcp://127.0.0.1:0"}) {
    for (const auto& secret : {std::string(), known_secret}) {
      SCOPED_TRACE(url + secret);
      expect_to_accept_once_there_are_descriptors(context({.secret = secret}), url);
      ASSERT_TRUE(comes_true([&] { return open_descriptors() <= at_rest; })) << open_descriptors() << " of " << at_rest;
    }
  }
}

// The socket stays readable all the time.
TEST_F(pipe_strangers, a_listener_that_cannot_accept_does_not_keep_a_core_busy) {
  const auto door = std::make_shared<faulty_peer>();
  const auto by = context({}, door);
  door->has_no_descriptor = true;
  open_door(by);
  auto there = by.connect(listener_.url());
  ASSERT_TRUE(there.ok());
  const auto began = clock_type::now();
  EXPECT_FALSE(accepting_.wait_for(120ms));
  const auto tries = door->accepts.load();
  EXPECT_LT(tries, 5 + 2 * static_cast<std::uint64_t>((clock_type::now() - began) / 50ms));
  door->has_no_descriptor = false;
  EXPECT_TRUE(accepting_.wait().ok());
}

// Strangers hold the descriptors that there are.
TEST_F(pipe_strangers, strangers_make_room_where_descriptors_are_short) {
  const auto by = context({.secret = known_secret, .prove_within = 60s});
  meet_all_types(by, "tcp://127.0.0.1:0");
  listener_ = *by.listen("tcp://127.0.0.1:0");
  std::vector<raw_end> strangers;
  for (int i = 0; i < 25; ++i) strangers.emplace_back(port());
  auto there = by.connect(listener_.url());
  ASSERT_TRUE(there.ok()) << there.error().message();
  const descriptor_limit few(open_descriptors() + 10);
  accepting_ = listener_.accept(here_);
  EXPECT_TRUE(accepting_.wait().ok());
  EXPECT_TRUE(there->explain().ok());
}

// Each listener might have a quarter of all descriptors for its strangers.
TEST_F(pipe_strangers, of_several_listeners_leave_the_program_descriptors) {
  constexpr int of_each = 60;
  const descriptor_limit few(300);
  const auto by = context({.secret = known_secret, .prove_within = 60s});
  std::vector<pipe_listener> listeners;
  std::vector<penstock::pipe> never(4);
  std::vector<operation> accepting;
  for (auto& each : never) {
    listeners.push_back(*by.listen("tcp://127.0.0.1:0"));
    accepting.push_back(listeners.back().accept(each));
  }
  std::vector<raw_end> strangers;
  for (int i = 0; i < of_each; ++i) {
    for (const auto& each : listeners) {
      if (strangers.size() < 150) strangers.emplace_back(raw_end::port_of(each.url()));
      EXPECT_GE(sys::owned_descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(), 0) << "after " << strangers.size();
    }
  }
  for (const auto& each : listeners) {
    auto there = by.connect(each.url());
    EXPECT_TRUE(there.ok() && there->explain().ok());
  }
}

// The kernel turns nobody away over tcp, who sends its greeting anew; over unix it does, at once.
TEST_F(pipe_strangers, who_connects_while_the_backlog_is_full_waits_for_a_place) {
  const auto by = context({});
  listener_ = *by.listen("unix:");
  const sys::socket_address at{sys::socket_address::family::unix_abstract, listener_.url().substr(std::string("unix:@").size()), 0};
  std::vector<sys::owned_descriptor> waiting;
  for (;;) {
    auto made = sys::linux_peer()->connect(at);
    if (!made) break;
    waiting.push_back(*std::move(made));
  }
  ASSERT_GT(waiting.size(), 10U);
  auto connecting = std::async(std::launch::async, [&] { return by.connect(listener_.url()); });
  accepting_ = listener_.accept(here_);  // those who wait for their turn are strangers, who make room
  const auto there = connecting.get();
  EXPECT_TRUE(there.ok()) << there.error().message();
  EXPECT_TRUE(accepting_.wait().ok());
}

TEST_F(pipe_strangers, a_pipe_that_is_closed_before_the_other_end_has_spoken_does_not_wait_for_it_long) {
  const auto by = context({.close_within = 60s});
  const auto door = sys::linux_peer();
  const auto silent = *door->listen({sys::socket_address::family::tcp, "127.0.0.1", 0});
  const auto before = open_descriptors();
  here_ = *by.connect("tcp://127.0.0.1:" + std::to_string(*door->port_of(silent.get())));
  here_.close();
  EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before; })) << open_descriptors() << " of " << before;
}

TEST_F(pipe_strangers, a_pipe_lets_go_of_an_end_that_never_closes) {
  const auto by = context({.channels = {"basic"}, .close_within = 20ms});
  open_door(by);
  const auto before = open_descriptors();
  raw_end silent(port());
  raw_end full(port());
  penstock::pipe other;
  auto second = listener_.accept(other);
  full.greet(1);
  silent.greet(1);
  ASSERT_TRUE(accepting_.wait().ok() && second.wait().ok());
  ASSERT_TRUE(here_.explain().ok() && other.explain().ok());
  const auto payload = some_bytes(8 << 20, 1);  // more than a socket holds
  auto sent = other.send({"never read", {{payload.data(), payload.size()}}, {}});
  here_.close();
  other.close();
  (void)sent.wait();
  EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before + 2; })) << open_descriptors() - before;
  EXPECT_EQ(here_.send({}).wait().error.code(), errc::closed);
}

// Of this process, those of one file. Of all there are more and fewer, as a GPU's driver needs them.
std::size_t descriptors_of(const std::string& file) {
  std::size_t count = 0;
  std::error_code gone;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += std::filesystem::read_symlink(each, gone).string().find(file) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST_F(pipe_strangers, descriptors_that_nobody_told_of_are_not_kept) {
  const sys::owned_descriptor stray(::memfd_create("stray", MFD_CLOEXEC));
  const auto door = std::make_shared<faulty_peer>();
  {
    const auto by = context({});
    const auto floods = context({}, door);
    open_door(by, "unix:");
    auto there = floods.connect(listener_.url());
    ASSERT_TRUE(there.ok() && accepting_.wait().ok() && there->explain().ok() && here_.explain().ok());
    door->passes = stray.get();
    io_result outcome;
    for (int i = 0; i < 1000 && outcome.ok(); ++i) {
      auto sent = there->send({"hello", {}, {}});
      incoming_message come;
      outcome = here_.next(come).wait();
      EXPECT_LE(descriptors_of("memfd:stray"), 1 + channel::connection::most_passed + faulty_peer::most_at_once);
      (void)sent.wait();
    }
    EXPECT_NE(outcome.error.message().find("descriptors"), std::string_view::npos) << outcome.error.message();
    EXPECT_TRUE(comes_true([] { return descriptors_of("memfd:stray") == 1; })) << "the pipe has ended, and nobody has dropped it";
  }
}

// --- what is said

TEST_F(pipe_strangers, what_the_other_end_says_is_fit_to_be_shown) {
  const auto by = context({});
  open_door(by);
  const std::string red = "\x1b[31mred\x07\n\x9b";
  {
    raw_end refuses(port());
    refuses.say(channel::frame_kind::refused, channel::encode_text(red + std::string(3000, 'x')));
    ASSERT_TRUE(accepting_.wait().ok());
    incoming_message never;
    const auto outcome = here_.next(never).wait();
    EXPECT_EQ(outcome.error.code(), errc::permission_denied);
    EXPECT_NE(outcome.error.message().find("?[31mred???"), std::string_view::npos) << outcome.error.message();
    EXPECT_LT(outcome.error.message().size(), 1200U);
  }
  const auto told = channel::status_of(static_cast<std::uint32_t>(errc::io), channel::encode_text(red + std::string(60'000, 'x')));
  EXPECT_NE(told.message().find("?[31mred???"), std::string_view::npos) << told.message();
  EXPECT_LT(told.message().size(), 1200U);
  const auto reach = channel::decode_reach(channel::encode(std::vector<channel::reached_channel>{{red, red}}));
  ASSERT_TRUE(reach.ok());
  EXPECT_EQ(reach->front().name, "?[31mred???");
  EXPECT_EQ(reach->front().refusal, "?[31mred???");
}

TEST_F(pipe_strangers, connecting_where_nobody_listens_fails_with_the_url) {
  const auto by = context({});
  open_door(by);
  const auto url = listener_.url();
  listener_ = pipe_listener();
  const auto made = by.connect(url);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), errc::not_found);
  EXPECT_EQ(made.error().message(), "no process is listening at " + url + ": Connection refused (os 111)");
}

// The host has these addresses.
class many_homes final : public faulty_peer {
 public:
  explicit many_homes(std::vector<std::string> all) : all_(std::move(all)) {}
  result<std::vector<sys::socket_address>> addresses_of(const sys::socket_address& host) override {
    std::vector<sys::socket_address> made;
    for (const auto& each : all_) made.push_back({host.kind, each, host.port});
    return made;
  }

 private:
  const std::vector<std::string> all_;
};

TEST_F(pipe_strangers, each_address_of_a_host_is_tried) {
  // Nobody listens at 127.0.0.2, and there is no way to 240.0.0.1.
  const std::vector<std::vector<std::string>> homes = {
      {"127.0.0.1"}, {"127.0.0.2", "127.0.0.1"}, {"::1", "127.0.0.1"}, {"240.0.0.1", "127.0.0.2", "127.0.0.1"}};
  for (const auto& home : homes) {
    const auto by = context({}, std::make_shared<many_homes>(home));
    open_door(by);
    const auto made = by.connect(listener_.url());
    ASSERT_TRUE(made.ok()) << made.error().message();
    EXPECT_TRUE(made->send({"hello", {}, {}}).wait().ok());
    EXPECT_TRUE(accepting_.wait().ok());
  }
  const auto nowhere = context({}, std::make_shared<many_homes>(std::vector<std::string>{"127.0.0.2", "127.0.0.3"}));
  const auto made = nowhere.connect(listener_.url());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message(), "no process is listening at " + listener_.url() + ": Connection refused (os 111)");
}

TEST_F(pipe_strangers, who_has_the_wrong_secret_hears_which_and_where) {
  const auto by = context({.secret = known_secret});
  open_door(by);
  const auto error_of = [&](const std::string& secret) {
    auto there = context({.secret = secret}).connect(listener_.url());
    EXPECT_TRUE(there.ok());
    incoming_message never;
    return std::string(there->next(never).wait().error.message());
  };
  EXPECT_EQ(error_of("a secret of somebody else"), listener_.url() + " does not accept the secret that was given here");
  EXPECT_EQ(error_of(""), listener_.url() + " refused the connection: it requires a secret, but none was given");
  const auto asks_none = context({});
  open_door(asks_none);
  EXPECT_EQ(error_of(known_secret), listener_.url() + " refused the connection: a secret was given, but none is required");
}

// As where a seccomp profile or a sandbox denies process_vm_readv.
TEST_F(pipe_strangers, what_the_kernel_lets_nobody_read_comes_another_way_in_one_process_too) {
  const auto door = std::make_shared<faulty_peer>();
  door->reads_none = true;
  const auto by = context({}, door);
  open_door(by, "unix:");
  auto there = by.connect(listener_.url());
  ASSERT_TRUE(there.ok() && accepting_.wait().ok());
  const auto content = some_bytes(1 << 20, 1);
  auto sent = there->send({"", {}, {{content.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  bytes room(content.size());
  const auto outcome = come.receive({{room.data(), room.size()}}).wait();
  EXPECT_TRUE(outcome.ok()) << outcome.error.message();
  EXPECT_EQ(room, content);
  const auto plan = here_.explain();
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  const auto xth = std::ranges::find(plan->receiving, "xth", &channel_choice::name);
  ASSERT_NE(xth, plan->receiving.end());
  EXPECT_EQ(xth->refusal.find("this process may not read its own memory"), 0U) << xth->refusal;
}

TEST_F(pipe_strangers, a_sender_that_died_is_named) {
  PENSTOCK_SKIP_WITHOUT_READING_MEMORY;
  const auto door = std::make_shared<faulty_peer>();
  const auto by = context({.channels = {"cma"}}, door);
  open_door(by, "unix:");
  auto there = by.connect(listener_.url());
  ASSERT_TRUE(there.ok() && accepting_.wait().ok());
  const auto content = some_bytes(1 << 20, 1);
  auto sent = there->send({"", {}, {{content.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  door->says_died = true;
  bytes room(content.size());
  const auto outcome = come.receive({{room.data(), room.size()}}).wait();
  EXPECT_EQ(outcome.error.code(), errc::closed);
  EXPECT_NE(outcome.error.message().find("process " + std::to_string(getpid()) + " of user"), std::string_view::npos)
      << outcome.error.message();
  EXPECT_NE(outcome.error.message().find("has died"), std::string_view::npos) << outcome.error.message();
}

TEST_F(pipe_strangers, a_sender_hears_why_there_was_no_room) {
  const auto by = context({});
  open_door(by, "unix:");
  auto there = by.connect(listener_.url());
  ASSERT_TRUE(there.ok() && accepting_.wait().ok());
  const auto content = some_bytes(1 << 20, 1);
  bytes room(8);
  const auto why_not = [&](auto receive) {
    auto sent = there->send({"", {}, {{content.data(), content.size()}}});
    {
      incoming_message come;
      EXPECT_FALSE(receive(come).ok());
    }
    return std::string(sent.wait().error.message());
  };
  const std::string too_short = "target 0 has 8 bytes, but its tensor has 1048576";
  EXPECT_NE(why_not([&](auto& come) {
              return here_.receive(come, {{room.data(), room.size()}}).wait();
            }).find(too_short),
            std::string::npos);
  EXPECT_NE(why_not([&](auto& come) {
              (void)here_.next(come).wait();
              return come.receive({{room.data(), room.size()}}).wait();
            }).find(too_short),
            std::string::npos);
  const auto no_room = [](const incoming_message&) -> result<std::vector<incoming_target>> {
    return status(errc::not_found, "no device is called \"moon\"");
  };
  EXPECT_NE(why_not([&](auto& come) { return here_.receive(come, no_room).wait(); }).find("no device is called \"moon\""),
            std::string::npos);
}

// --- many at once

// Bytes of this process that are in memory.
std::size_t resident() {
  std::size_t all = 0;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

struct storm {
  unsigned a_second = 0;
  std::chrono::milliseconds lasts{};
  int groups = 0;  // of ten each who know the secret
};

class pipe_storm : public pipe_strangers {
 protected:
  // All who know the secret get in beside the strangers, who come from another process, each within its deadline; the program can open
  // files meanwhile, and has no more open afterwards than before.
  void run(const storm& how) {
    const descriptor_limit few(1024);
    const auto by = context({.secret = known_secret});
    const auto listener = by.listen("tcp://127.0.0.1:0");
    ASSERT_TRUE(listener.ok());
    const auto before = open_descriptors();
    peer_process strangers(PENSTOCK_PIPE_PEER_PATH, listener->url(), "all", "storms", how.a_second);
    ASSERT_EQ(strangers.line(), "there");
    std::size_t memory = 0;
    auto next = clock_type::now();
    for (int i = 0; i < how.groups; ++i, next += how.lasts / how.groups) {
      SCOPED_TRACE("group " + std::to_string(i));
      std::this_thread::sleep_until(next);
      let_ten_in(by, *listener);
      if (HasFatalFailure()) return;
      EXPECT_GE(sys::owned_descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(), 0);
      if (i == how.groups / 4) memory = resident();
    }
    strangers.kill();
    const auto is_as_before = [&] { return open_descriptors() <= before + 8; };  // what the engine keeps since its first pipe
    EXPECT_TRUE(comes_true(is_as_before)) << open_descriptors() << ", before " << before;
    EXPECT_LT(resident(), memory + (std::size_t{16} << 20));
  }

 private:
  struct known {
    penstock::pipe here;
    penstock::pipe there;
    operation accepting;
    incoming_message come;
    operation answer;
  };
  static void let_ten_in(const pipe_context& by, const pipe_listener& through) {
    std::vector<known> all(10);
    for (auto& each : all) {
      each.accepting = through.accept(each.here, within(2s));
      auto there = by.connect(through.url());
      ASSERT_TRUE(there.ok()) << there.error().message();
      each.there = *std::move(there);
      each.answer = each.there.next(each.come, within(2s));
    }
    for (auto& each : all) {
      const auto accepted = each.accepting.wait();
      ASSERT_TRUE(accepted.ok()) << accepted.error.message();
      ASSERT_TRUE(each.here.send({"welcome", {}, {}}, within(2s)).wait().ok());
    }
    for (auto& each : all) {
      const auto greeted = each.answer.wait();
      ASSERT_TRUE(greeted.ok()) << greeted.error.message();
    }
  }
};

TEST_F(pipe_storm, twenty_get_in_beside_strangers_of_all_sorts) { run({1000, 500ms, 2}); }

class long_pipe_storm : public pipe_storm {};

TEST_F(long_pipe_storm, a_hundred_get_in_beside_five_thousand_strangers_a_second) { run({5000, 6s, 10}); }

}  // namespace
}  // namespace penstock::testing
