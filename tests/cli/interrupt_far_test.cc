// One Ctrl-C or SIGTERM ends every command, whatever it waits for: a server that does not respond, trickles, asks for retries later or
// accepts no connection, or a file that is larger than any disk. A new command or kind of server takes one line.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "support/web_server.hpp"

namespace penstock::cli_test {
namespace {

using testing::web_request;
using testing::web_server;
using words = std::vector<std::string>;

// Opened once the command has come to the place where it is to wait.
class gate {
 public:
  void open() {
    const std::lock_guard guard(lock_);
    is_open_ = true;
    opened_.notify_all();
  }
  // Or until the command has ended, which it should not.
  void wait_and_close(const program& coming) {
    std::unique_lock guard(lock_);
    while (!opened_.wait_for(guard, std::chrono::milliseconds(20), [this] { return is_open_; }) && !coming.has_ended()) {
    }
    is_open_ = false;
  }

 private:
  std::mutex lock_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

constexpr const char* large_object = "HTTP/1.1 200 OK\r\nETag: \"first\"\r\nAccept-Ranges: bytes\r\nContent-Length: 67108864\r\n\r\n";

std::string part_of_large_object(const web_request& asked) {
  const auto [first, last] = asked.range.value_or(std::pair<std::uint64_t, std::uint64_t>(0, 67108863));
  return fmt::format("HTTP/1.1 206 Partial Content\r\nETag: \"first\"\r\nContent-Range: bytes {}-{}/67108864\r\nContent-Length: {}\r\n\r\n",
                     first, last, last - first + 1);
}

// A byte now and then, until the reader has gone.
void trickle(const web_server::client& over, std::string_view head) {
  if (!over.send(head)) return;
  pollfd gone{-1, 0, 0};
  while (over.send("1")) ::poll(&gone, 1, 20);
}

struct server_case {
  const char* name;
  bool answers_head;  // so that commands that ask for no byte end by themselves
  std::function<void(const web_request&, const web_server::client&)> answer;
};

const std::array servers{
    server_case{"silent", false, [](const web_request&, const web_server::client& over) { over.hold(); }},
    server_case{"that is silent when it is to send bytes", true, [](const web_request&, const web_server::client& over) { over.hold(); }},
    server_case{"that trickles its headers", false,
                [](const web_request&, const web_server::client& over) { trickle(over, "HTTP/1.1 200 OK\r\nX-Long: "); }},
    server_case{"that trickles bytes", true,
                [](const web_request& asked, const web_server::client& over) { trickle(over, part_of_large_object(asked)); }},
    server_case{"that asks for patience", false,
                [](const web_request&, const web_server::client& over) {
                  over.send("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 20\r\nContent-Length: 0\r\n\r\n");
                }},
};

class interrupt_far : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  // URL stands for an object, S3 for an address below which others lie.
  [[nodiscard]] std::vector<words> readers() const {
    return {{"read", "URL", "--device", "host"},
            {"cp", "URL", path("copy")},
            {"cp", "-r", "S3/folder/", path("folder")},
            {"cp", "S3/object", path("copy")},
            {"verify", "URL"},
            {"verify", "-f", "URL", "-d", "host:0"},
            {"verify", "--compare", "URL", "URL"},
            {"load", "URL", "--device", "host:0"},
            {"inspect", "URL"},
            {"convert", "URL", path("made.safetensors")},
            {"check", "URL"}};
  }
  [[nodiscard]] std::vector<words> writers() const { return {{"cp", small_, "S3/object"}, {"cp", large_, "S3/object"}}; }
  static bool asks_for_bytes(const words& command) { return command.front() != "check"; }

  [[nodiscard]] static words with_addresses(words command, const std::string& url) {
    for (std::string& each : command) {
      if (each == "URL") each = url;
      if (each.starts_with("S3")) each = "s3://bucket" + each.substr(2);
    }
    return command;
  }

  void expect_end(const words& command, const std::string& waits_for, gate* reached) {
    const int signal_number = ++rounds_ % 2 == 0 ? SIGINT : SIGTERM;
    program waiting(command);
    reached != nullptr ? reached->wait_and_close(waiting) : waiting.wait_until_it_catches(signal_number);
    waiting.send(signal_number);
    const auto ended = waiting.finish();
    EXPECT_EQ(ended.exit_code, 128 + signal_number) << ::testing::PrintToString(command) << ", " << waits_for << ": " << ended.err;
  }

  scratch_directory directory_;
  const std::string small_ = directory_.make_file("small", 100000);
  const std::string large_ = directory_.make_sparse_file("large", 64 * mib);
  unsigned rounds_ = 0;
  const scoped_variable key_{"AWS_ACCESS_KEY_ID", "key"}, secret_{"AWS_SECRET_ACCESS_KEY", "secret"}, region_{"AWS_REGION", "us-east-1"};
};

class interrupt_server : public interrupt_far, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(interrupt_server, ends_whatever_waits_for_it) {
  const server_case& kind = servers.at(GetParam());
  gate reached;
  web_server server({});
  server.set_answer([&](const web_request& asked, const web_server::client& over) -> std::optional<web_server::then> {
    if (kind.answers_head && asked.method == "HEAD") {
      over.send(large_object);
      return web_server::then::keep;
    }
    reached.open();
    kind.answer(asked, over);
    return web_server::then::close;
  });
  const scoped_variable endpoint("AWS_ENDPOINT_URL", server.origin());
  auto commands = readers();
  if (!kind.answers_head) {
    for (words& writer : writers()) commands.push_back(writer);
  }
  for (const words& command : commands) {
    if (kind.answers_head && !asks_for_bytes(command)) continue;
    expect_end(with_addresses(command, server.url("/model.safetensors")), fmt::format("a server {}", kind.name), &reached);
  }
}

INSTANTIATE_TEST_SUITE_P(kinds, interrupt_server, ::testing::Range(std::size_t{0}, servers.size()));

// Its queue is full, so that the kernel answers no more connections.
TEST_F(interrupt_far, ends_what_waits_for_a_connection) {
  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(::listen(listening, 0), 0);
  socklen_t bytes = sizeof at;
  ASSERT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  std::vector<int> queued;
  for (int i = 0; i < 4; ++i) {
    queued.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    static_cast<void>(::connect(queued.back(), reinterpret_cast<sockaddr*>(&at), sizeof at));
  }
  const std::string origin = fmt::format("http://127.0.0.1:{}", ntohs(at.sin_port));
  const scoped_variable endpoint("AWS_ENDPOINT_URL", origin);
  for (const words& command : readers()) expect_end(with_addresses(command, origin + "/model.safetensors"), "a connection", nullptr);
  for (const int each : queued) ::close(each);
  ::close(listening);
}

// Those that look at its beginning only end by themselves, which is as good.
TEST_F(interrupt_far, ends_what_goes_over_a_file_of_any_size) {
  const auto huge = directory_.make_sparse_file("huge", std::size_t{15} << 40);
  const std::vector<words> commands{{"read", huge, "--device", "host"},
                                    {"verify", huge},
                                    {"verify", "-f", huge, "-d", "host:0", "-n", "1000000"},
                                    {"verify", "--compare", huge, huge},
                                    {"check", huge},
                                    {"inspect", huge},
                                    {"load", huge, "--device", "host:0"},
                                    {"convert", huge, path("made.safetensors")}};
  for (const words& command : commands) {
    const int signal_number = ++rounds_ % 2 == 0 ? SIGINT : SIGTERM;
    program running(command);
    running.wait_until_it_catches(signal_number);
    running.send(signal_number);
    const auto ended = running.finish();
    const bool ends_by_itself =
        command.front() == "check" || command.front() == "inspect" || command.front() == "load" || command.front() == "convert";
    EXPECT_TRUE(ended.exit_code == 128 + signal_number || (ends_by_itself && ended.exit_code < 128))
        << command.front() << ": " << ended.err;
  }
}

}  // namespace
}  // namespace penstock::cli_test
