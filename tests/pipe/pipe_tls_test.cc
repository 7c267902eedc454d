// Encrypted pipes over tcp: accepted peers, rejected peers and their errors, and what all others get.
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "channel/connection.hpp"
#include "pipe/faulty_peer.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/raw_end.hpp"
#include "support/open_descriptors.hpp"
#include "support/temp_dir.hpp"
#include "sys/tls.hpp"

namespace penstock::testing::tls {
namespace {

using namespace std::chrono_literals;

constexpr const char* make_certificates = R"(
set -e
cd "$0"
authority() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key -out $1.pem -days 3650 -subj /CN=$1; }
signed() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key -out $1.csr -subj /CN=$1
  printf "subjectAltName=$3" > $1.ext
  openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days $4 -extfile $1.ext -out $1.pem
}
authority ca
authority other
signed good ca DNS:localhost,IP:127.0.0.1 3650
signed elsewhere ca DNS:elsewhere.example 3650
signed expired ca DNS:localhost,IP:127.0.0.1 -1
signed foreign other DNS:localhost,IP:127.0.0.1 3650
openssl pkey -in good.key -aes256 -passout pass:word -out locked.key
)";

// Made once; empty where there is no openssl.
const temp_dir* certificates() {
  static const temp_dir folder;
  static const bool made = [] {
    const auto command = "sh -c '" + std::string(make_certificates) + "' " + folder.file("") + " >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  }();
  return made ? &folder : nullptr;
}

class pipe_tls_ends : public ::testing::Test {
 protected:
  void SetUp() override {
    if (certificates() == nullptr) GTEST_SKIP() << "there is no openssl to make certificates";
  }
  static std::string file(const std::string& name) { return certificates()->file(name); }
  static pipe_tls with(const std::string& name, const std::string& ca = "") {
    return {name.empty() ? "" : file(name + ".pem"), name.empty() ? "" : file(name + ".key"), ca.empty() ? "" : file(ca + ".pem")};
  }
  pipe_context context(pipe_tls tls, const std::string& secret = "") {
    pipe_options options;
    options.tls = std::move(tls);
    options.secret = secret;
    auto made = pipe_context::create(engine_, options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  void open_door(const pipe_context& by) {
    auto made = by.listen("tcp://127.0.0.1:0");
    ASSERT_TRUE(made.ok()) << made.error().message();
    listener_ = *std::move(made);
    accepting_ = listener_.accept(here_);
  }
  void expect_to_let_in(const pipe_context& who) {
    auto made = who.connect(listener_.url());
    ASSERT_TRUE(made.ok()) << made.error().message();
    there_ = *std::move(made);
    EXPECT_TRUE(there_.send({"hello", {}, {}}).wait().ok());
    ASSERT_TRUE(accepting_.wait().ok());
    incoming_message come;
    ASSERT_TRUE(here_.next(come).wait().ok());
    EXPECT_EQ(come.metadata(), "hello");
  }
  // Why the first operation of who connects fails.
  status expect_to_shut_out(const pipe_context& who) {
    auto made = who.connect(listener_.url());
    if (!made.ok()) return made.error();
    incoming_message come;
    const auto outcome = made->next(come, within(20s)).wait();
    EXPECT_FALSE(outcome.ok());
    EXPECT_FALSE(accepting_.done());
    return outcome.error;
  }

  engine engine_ = *engine::create(engine_options{});
  pipe_listener listener_;
  penstock::pipe here_;
  penstock::pipe there_;
  operation accepting_;
};

TEST_F(pipe_tls_ends, messages_and_tensors_go_both_ways_over_several_connections) {
  open_door(context(with("good")));
  expect_to_let_in(context(with("", "ca")));
  for (const std::size_t size : {std::size_t{1}, std::size_t{20'000}, std::size_t{1} << 20, (std::size_t{40} << 20) + 3}) {
    for (const bool forth : {true, false}) {
      const auto content = some_bytes(size, forth ? 1 : 2);
      auto sent = (forth ? here_ : there_).send({"", {{content.data(), 1}}, {{content.data(), size}, {content.data(), size / 2}}});
      const auto got = receive_from(forth ? there_ : here_);
      ASSERT_TRUE(got.outcome.ok()) << got.outcome.error.message();
      EXPECT_EQ(got.tensors[0], content);
      EXPECT_TRUE(std::equal(got.tensors[1].begin(), got.tensors[1].end(), content.begin()));
      EXPECT_TRUE(sent.wait().ok());
    }
  }
  const auto plan = there_.explain();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->transport, "tls");
  EXPECT_EQ(plan->connections, 4U);
}

// Whatever comes, until a message that is the last.
void receive_all(const penstock::pipe& from, const bytes& content) {
  for (;;) {
    incoming_message come;
    ASSERT_TRUE(from.next(come).wait().ok());
    if (come.metadata() == "last") return;
    std::vector<bytes> room;
    if (come.receive(room_for(come, room)).wait().ok()) {
      EXPECT_EQ(room.at(0), content);
    }
  }
}

TEST_F(pipe_tls_ends, both_ends_send_much_at_once_and_either_may_take_it_back) {
  open_door(context(with("good")));
  expect_to_let_in(context(with("", "ca")));
  const auto content = some_bytes(std::size_t{9} << 20, 1);
  std::thread here([&] { receive_all(here_, content); });
  std::thread there([&] { receive_all(there_, content); });
  for (int round = 0; round < 8; ++round) {
    auto forth = here_.send({"", {}, {{content.data(), content.size()}}});
    auto back = there_.send({"", {}, {{content.data(), content.size()}}});
    auto dropped = here_.send({"", {{content.data(), content.size()}}, {{content.data(), content.size()}}});
    if (round % 3 == 0) forth.cancel();
    dropped.cancel();
    EXPECT_TRUE(forth.wait().ok() || round % 3 == 0);
    (void)dropped.wait();
    EXPECT_TRUE(back.wait().ok());
  }
  EXPECT_TRUE(here_.send({"last", {}, {}}).wait().ok());
  EXPECT_TRUE(there_.send({"last", {}, {}}).wait().ok());
  here.join();
  there.join();
}

// Who sends may find that the ends have not agreed in the moment in which the thread that reads has them agree.
TEST_F(pipe_tls_ends, each_of_many_pipes_gets_going) {
  const auto client = context(with("", "ca"));
  const auto server = context(with("good"));
  for (int i = 0; i < 100; ++i) {
    open_door(server);
    auto made = client.connect(listener_.url());
    ASSERT_TRUE(made.ok());
    incoming_message come;
    auto next = made->next(come);
    auto sent = made->send({"hello", {}, {}});
    ASSERT_TRUE(accepting_.wait().ok()) << i;
    EXPECT_TRUE(here_.send({"answer", {}, {}}).wait().ok());
    const auto outcome = next.wait();
    ASSERT_TRUE(outcome.ok()) << i << ": " << outcome.error.message();
    EXPECT_TRUE(sent.wait().ok());
  }
}

TEST_F(pipe_tls_ends, a_certificate_has_to_be_of_the_host_and_of_an_authority_that_is_trusted_and_in_its_time) {
  const auto expect_refused = [&](const std::string& server, const pipe_tls& client, const std::string& words) {
    SCOPED_TRACE(server + ", " + words);
    open_door(context(with(server)));
    const auto why = expect_to_shut_out(context(client));
    EXPECT_EQ(why.code(), errc::permission_denied) << why.message();
    EXPECT_NE(why.message().find(words), std::string_view::npos) << why.message();
  };
  expect_refused("expired", with("", "ca"), "expired");
  expect_refused("elsewhere", with("", "ca"), "mismatch");
  expect_refused("foreign", with("", "ca"), "certificate");
  expect_refused("good", with("", "other"), "certificate");
  expect_refused("good", with(""), "certificate");  // the system trusts no such authority
  auto named = with("", "ca");
  named.server_name = "elsewhere.example";
  expect_refused("good", named, "mismatch");
  open_door(context(with("elsewhere")));
  expect_to_let_in(context(named));
}

TEST_F(pipe_tls_ends, who_connects_needs_a_certificate_where_the_listener_has_an_authority) {
  open_door(context(with("good", "ca")));
  for (const auto& [name, words] :
       {std::pair("", "certificate required"), std::pair("foreign", "unknown ca"), std::pair("expired", "expired")}) {
    const auto why = expect_to_shut_out(context(with(name, "ca")));
    EXPECT_EQ(why.code(), errc::permission_denied) << why.message();
    EXPECT_NE(why.message().find(words), std::string_view::npos) << why.message();
  }
  expect_to_let_in(context(with("good", "ca")));
}

TEST_F(pipe_tls_ends, a_secret_is_asked_for_besides) {
  open_door(context(with("good"), "correct horse battery staple"));
  EXPECT_EQ(expect_to_shut_out(context(with("", "ca"), "another secret of theirs")).code(), errc::permission_denied);
  EXPECT_EQ(expect_to_shut_out(context(with("", "ca"))).code(), errc::permission_denied);
  expect_to_let_in(context(with("", "ca"), "correct horse battery staple"));
}

// The listener goes on to wait for one with TLS, whether it asks for a secret too or not.
TEST_F(pipe_tls_ends, one_without_tls_hears_that_the_listener_uses_it) {
  for (const std::string secret : {"", "correct horse battery staple"}) {
    open_door(context(with("good"), secret));
    pipe_options options;
    options.secret = secret;
    const auto why = expect_to_shut_out(*pipe_context::create(engine_, options));
    EXPECT_EQ(why.code(), errc::permission_denied) << why.message();
    EXPECT_NE(why.message().find("the peer uses TLS, but this process does not"), std::string_view::npos) << why.message();
    expect_to_let_in(context(with("", "ca"), secret));
  }
}

TEST_F(pipe_tls_ends, one_with_tls_and_a_listener_without_it_both_say_so) {
  const auto plain = pipe_context::create(engine_);
  auto door = plain->listen("tcp://127.0.0.1:0");
  penstock::pipe theirs;
  auto accepting = door->accept(theirs);
  auto made = context(with("", "ca")).connect(door->url());
  ASSERT_TRUE(made.ok());
  incoming_message come;
  const auto outcome = made->next(come, within(20s)).wait();
  EXPECT_NE(outcome.error.message().find("not use TLS"), std::string_view::npos) << outcome.error.message();
  ASSERT_TRUE(accepting.wait().ok());
  const auto of_theirs = theirs.next(come, within(20s)).wait();
  EXPECT_EQ(of_theirs.error.code(), errc::permission_denied);
  EXPECT_NE(of_theirs.error.message().find("the peer uses TLS, but this process does not"), std::string_view::npos)
      << of_theirs.error.message();
}

TEST_F(pipe_tls_ends, strangers_hold_nothing_and_keep_nobody_out) {
  pipe_options options;
  options.tls = with("good");
  options.prove_within = 300ms;
  const auto door = *pipe_context::create(engine_, options);
  open_door(door);
  const auto port = raw_end::port_of(listener_.url());
  const auto before = open_descriptors();
  std::vector<std::unique_ptr<raw_end>> ends;
  for (unsigned i = 0; i < 60; ++i) {
    auto& end = *ends.emplace_back(std::make_unique<raw_end>(port));
    if (i % 3 == 0) (void)end.write(some_bytes(200, i));                                         // no TLS
    if (i % 3 == 1) (void)end.write({std::byte{22}, std::byte{3}, std::byte{1}, std::byte{2}});  // the beginning of it, and no more
  }
  expect_to_let_in(context(with("", "ca")));
  penstock::pipe second;
  accepting_ = listener_.accept(second);  // they are looked after while somebody waits
  EXPECT_TRUE(comes_true([&] { return open_descriptors() <= before + ends.size() + 12; }));
}

TEST_F(pipe_tls_ends, what_cannot_be_is_told) {
  const auto code_of = [&](const pipe_tls& tls, const std::vector<std::string>& channels = {}) {
    pipe_options options;
    options.channels = channels;
    options.tls = tls;
    const auto made = pipe_context::create(engine_, options);
    return made.ok() ? errc::ok : made.error().code();
  };
  EXPECT_EQ(code_of({file("good.pem")}), errc::invalid_argument) << "no key";
  EXPECT_EQ(code_of({file("good.pem"), file("foreign.key")}), errc::invalid_argument) << "the key to another";
  EXPECT_EQ(code_of({file("good.pem"), file("locked.key")}), errc::invalid_argument) << "a pass phrase, which nobody is asked for";
  pipe_options locked;
  locked.tls = {file("good.pem"), file("locked.key")};
  const auto told = pipe_context::create(engine_, locked).error();
  EXPECT_NE(told.message().find("locked.key has a pass phrase"), std::string_view::npos) << told.message();
  EXPECT_EQ(code_of({file("none.pem"), file("good.key")}), errc::invalid_argument);
  EXPECT_EQ(code_of({"", "", file("none.pem")}), errc::invalid_argument);
  EXPECT_EQ(code_of(with("good"), {"ucx", "basic"}), errc::unsupported) << "which is not encrypted";
  const auto without = context(with("", "ca")).listen("tcp://127.0.0.1:0");
  EXPECT_EQ(without.error().code(), errc::invalid_argument);
  const auto anybody = context(with("good")).listen("tcp://0.0.0.0:0");
  EXPECT_EQ(anybody.error().code(), errc::permission_denied);
  EXPECT_TRUE(context(with("good", "ca")).listen("tcp://0.0.0.0:0").ok());
}

TEST_F(pipe_tls_ends, unix_sockets_are_as_without) {
  const auto by = context(with("", "ca"));
  auto door = *by.listen("unix:");
  auto accepting = door.accept(here_);
  there_ = *by.connect(door.url());
  ASSERT_TRUE(accepting.wait().ok());
  EXPECT_EQ(there_.explain()->transport, "unix");
}

// A socket in memory.
class wire final : public faulty_peer {
 public:
  result<std::size_t> send(int /*fd*/, std::span<const iovec> parts, std::span<const int> /*passed*/) override {
    if (!not_sent.ok()) return not_sent;
    const auto* const from = static_cast<const std::byte*>(parts[0].iov_base);
    written.insert(written.end(), from, from + parts[0].iov_len);
    return parts[0].iov_len;
  }
  result<std::size_t> receive(int /*fd*/, std::span<const iovec> parts, std::vector<sys::owned_descriptor>* /*passed*/) override {
    if (come.empty() && brings_more) brings_more();
    if (come.empty() && !has_ended) return status(errc::would_block, "nothing has come");
    const auto size = std::min(parts[0].iov_len, come.size());
    std::copy_n(come.begin(), size, static_cast<std::byte*>(parts[0].iov_base));
    come.erase(come.begin(), come.begin() + static_cast<std::ptrdiff_t>(size));
    return size;
  }
  bytes written;
  bytes come;
  std::function<void()> brings_more;
  status not_sent;
  bool has_ended = false;
};

class tls_streams : public pipe_tls_ends {
 protected:
  void SetUp() override {
    pipe_tls_ends::SetUp();
    if (IsSkipped()) return;
    client_ = *(*sys::tls_context::make({.ca = file("ca.pem")}))->connect("localhost");
    server_ = *(*sys::tls_context::make({.certificate = file("good.pem"), .key = file("good.key")}))->accept();
    using awaited = sys::tls_stream::awaited;
    while (client_->waits_for() != awaited::nothing || server_->waits_for() != awaited::nothing) {
      ASSERT_EQ(receive(*client_, there_).code(), errc::would_block);
      carry();
      ASSERT_EQ(receive(*server_, here_).code(), errc::would_block);
      carry();
    }
  }
  // What each end has written comes to the other.
  void carry() {
    here_.come.insert(here_.come.end(), there_.written.begin(), there_.written.end());
    there_.come.insert(there_.come.end(), here_.written.begin(), here_.written.end());
    there_.written.clear();
    here_.written.clear();
  }
  static status receive(sys::tls_stream& by, wire& over, std::size_t* count = nullptr) {
    std::array<std::byte, 16> into{};
    const auto got = by.receive(over, -1, {into.data(), into.size()});
    if (got && count != nullptr) *count = *got;
    return got ? status() : got.error();
  }
  static result<std::size_t> send(sys::tls_stream& by, wire& over, const bytes& what) {
    const iovec part{const_cast<std::byte*>(what.data()), what.size()};
    return by.send(over, -1, {&part, 1});
  }

  wire here_;  // of the server
  wire there_;
  std::unique_ptr<sys::tls_stream> client_;
  std::unique_ptr<sys::tls_stream> server_;
};

TEST_F(tls_streams, an_end_that_was_told_of_is_the_end) {
  std::size_t count = 1;
  ASSERT_TRUE(send(*client_, there_, bytes(5)).ok());
  client_->end(there_, -1);
  carry();
  here_.has_ended = there_.has_ended = true;
  EXPECT_TRUE(receive(*server_, here_, &count).ok());
  EXPECT_EQ(count, 5U);
  EXPECT_TRUE(receive(*server_, here_, &count).ok());
  EXPECT_EQ(count, 0U);
  EXPECT_TRUE(receive(*client_, there_, &count).ok()) << "it has told itself";
}

TEST_F(tls_streams, a_socket_that_ends_without_a_word_was_cut) {
  here_.has_ended = true;
  const auto why = receive(*server_, here_);
  EXPECT_EQ(why.code(), errc::io);
  EXPECT_NE(why.message().find("the connection was interrupted"), std::string_view::npos) << why.message();
}

TEST_F(tls_streams, what_was_changed_on_its_way_is_an_error_of_io) {
  ASSERT_TRUE(send(*client_, there_, bytes(5)).ok());
  carry();
  here_.come.back() ^= std::byte{1};
  EXPECT_EQ(receive(*server_, here_).code(), errc::io);
}

TEST_F(tls_streams, what_has_arrived_is_read_though_nothing_can_be_sent) {
  std::size_t count = 0;
  ASSERT_TRUE(send(*client_, there_, bytes(5)).ok());
  carry();
  here_.not_sent = status(errc::io, "a broken pipe");
  EXPECT_EQ(send(*server_, here_, bytes(5)).error().code(), errc::io);
  EXPECT_TRUE(receive(*server_, here_, &count).ok());
  EXPECT_EQ(count, 5U);
  EXPECT_EQ(receive(*server_, here_).code(), errc::would_block);
}

TEST_F(tls_streams, a_connection_on_which_more_comes_all_the_time_lets_others_have_their_turn) {
  const auto over = std::make_shared<wire>();
  over->come = std::move(here_.come);
  const channel::frame_head head{0, 0, 0, 0, std::uint64_t{1} << 40};
  bytes next(64 << 10);
  std::memcpy(next.data(), &head, sizeof(head));
  over->brings_more = [&] {
    ASSERT_TRUE(send(*client_, there_, next).ok());
    over->come = std::exchange(there_.written, {});
  };
  const auto connection = channel::connection::make(over, nullptr, sys::owned_descriptor(), false, std::move(server_));
  EXPECT_EQ(connection->ready(true, false), channel::socket_handler::next::turn);
  over->brings_more = nullptr;
  while (connection->ready(true, false) == channel::socket_handler::next::turn) continue;
  EXPECT_TRUE(over->come.empty());
}

}  // namespace
}  // namespace penstock::testing::tls
