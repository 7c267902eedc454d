// penstock stats: its output for this process, which runs real engines, and the Prometheus endpoint.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"
#include "penstock/pipe.hpp"
#include "penstock/processes.hpp"

namespace penstock::cli_test {
namespace {

using nlohmann::json;

class stats_command : public ::testing::Test {
 protected:
  // So many reads of 4 KiB into memory of the host.
  void read(int count) {
    auto file = *engine_.open(directory_.make_file("data", 65536));
    std::array<std::byte, 4096> memory;
    for (int i = 0; i < count; ++i) ASSERT_EQ(file.read(memory.data(), memory.size(), i * 4096).bytes_done, memory.size());
  }
  // As the library tells it: other tests may have run in this process before.
  static process_stats now() { return observe_process(getpid()).value_or({}); }
  static path_stats posix() {
    for (const auto& path : now().stats.by_path) {
      if (path.name == "posix") return path;
    }
    return {};
  }

  const std::string own_ = std::to_string(getpid());
  scratch_directory directory_;
  engine engine_ = host_engine();
};

TEST_F(stats_command, tells_of_one_process_at_three_levels) {
  read(3);
  const auto first = run({"stats", "-p", own_});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, "process " + own_)) << first.out;
  EXPECT_TRUE(contains(first.out, " in " + std::to_string(now().stats.reads) + " requests")) << first.out;
  EXPECT_TRUE(contains(first.out, " in " + std::to_string(posix().operations) + " pieces at ")) << first.out;
  EXPECT_FALSE(contains(first.out, "piece sizes"));
  const auto second = run({"stats", "-p", own_, "-l", "2"}).out;
  EXPECT_TRUE(contains(second, "from    4 KiB ")) << second;
  EXPECT_FALSE(contains(second, "memory\n"));
  const auto third = run({"stats", "-p", own_, "-l", "3"}).out;
  EXPECT_TRUE(contains(third, " read in " + std::to_string(now().stats.by_device.front().reads) + " requests, ")) << third;
}

TEST_F(stats_command, tells_what_programs_of_cufile_register_also_before_their_first_request) {
  const auto before = now().stats.usage;
  detail::note_call(engine_, detail::noted_call::handle_register, true);
  detail::note_call(engine_, detail::noted_call::buffer_register, false);
  read(1);
  detail::note_call(engine_, detail::noted_call::batch_submit, true);
  detail::note_call(engine_, detail::noted_call::batch_submit, true);
  const auto after = now().stats.usage;
  EXPECT_EQ(after.handle_registers, before.handle_registers + 1);
  EXPECT_EQ(after.buffer_register_errors, before.buffer_register_errors + 1);
  EXPECT_EQ(after.batch_submits, before.batch_submits + 2);
  EXPECT_EQ(engine_.stats().usage.handle_registers, 1) << "the engine's own counters have them once";
  EXPECT_EQ(engine_.stats().usage.buffer_register_errors, 1);
  const auto told = run({"stats", "-p", own_}).out;
  EXPECT_TRUE(contains(told, "HandleRegister: ok=" + std::to_string(after.handle_registers) + " err=")) << told;
}

TEST_F(stats_command, tells_of_pipes_by_channel) {
  const auto context = *pipe_context::create(engine_);
  auto listener = *context.listen("unix:");
  penstock::pipe here;
  auto accepted = listener.accept(here);
  const auto there = *context.connect(listener.url());
  ASSERT_TRUE(accepted.wait().ok());
  std::array<std::byte, 100> content{};
  auto sent = there.send({"", {}, {{content.data(), content.size()}}});
  incoming_message message;
  ASSERT_TRUE(here.next(message).wait().ok());
  std::array<std::byte, 100> room{};
  ASSERT_TRUE(message.receive({{room.data(), room.size()}}).wait().ok());
  ASSERT_TRUE(sent.wait().ok());
  const auto in_words = run({"stats", "-p", own_}).out;
  EXPECT_TRUE(contains(in_words, "pipes\n")) << in_words;
  EXPECT_TRUE(contains(in_words, " sent in ")) << in_words;
  const auto channels = json::parse(run({"stats", "--json", "-p", own_}).out)["channels"];
  ASSERT_FALSE(channels.empty());
  EXPECT_GE(channels[0]["sent_tensors"], 1);
  EXPECT_GE(channels[0]["received_bytes"], 100);
  const auto metrics = run({"stats", "--prometheus"}).out;
  EXPECT_TRUE(contains(metrics, "penstock_channel_sent_tensors_total{pid=\"" + own_)) << metrics;
  EXPECT_TRUE(contains(metrics, "penstock_cold_read_bytes_total{pid=\"" + own_)) << metrics;
}

TEST_F(stats_command, tells_of_all_in_a_line_each_and_as_json) {
  read(2);
  const auto lines = run({"stats"});
  EXPECT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_TRUE(contains(lines.out, "     PID  PROGRAM                  READ    WRITTEN  REQUESTS IN FLIGHT  NOTES\n")) << lines.out;
  EXPECT_TRUE(contains(lines.out, own_ + "  penstock_cli_tests")) << lines.out;
  const auto all = json::parse(run({"stats", "--json"}).out);
  const auto own = std::find_if(all.begin(), all.end(), [](const json& each) { return each["pid"] == getpid(); });
  ASSERT_NE(own, all.end());
  EXPECT_GE(now().stats.reads, 2U);
  EXPECT_EQ((*own)["read_bytes"], now().stats.read_bytes);
  EXPECT_EQ((*own)["devices"][0]["name"], "host");
  EXPECT_EQ(json::parse(run({"stats", "--json", "-p", own_}).out)["reads"], now().stats.reads);
}

TEST_F(stats_command, says_in_words_why_there_is_nothing_to_show) {
  EXPECT_TRUE(contains(run({"stats", "-p", "5000000"}).err, "penstock: there is no process 5000000"));
  const auto without = run({"stats", "-p", std::to_string(getppid())});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_TRUE(contains(without.err, "does not use Penstock")) << without.err;
  if (geteuid() != 0) {
    EXPECT_TRUE(contains(run({"stats", "-p", "1"}).err, "belongs to user"));
  }
  EXPECT_EQ(run({"stats", "-l", "4", "-p", own_}).exit_code, 2);
  EXPECT_EQ(run({"stats", "-p", "x"}).exit_code, 2);
  EXPECT_EQ(run({"stats", "--serve", "x"}).exit_code, 2);
  EXPECT_TRUE(contains(run({"stats", "--serve", "0.0.0.0:0"}).err, "is reachable from other machines"));
}

// Of the process, in whose counters other tests may be too.
TEST_F(stats_command, advises_a_program_that_reads_little_by_little_and_nobody_else) {
  read(1);
  EXPECT_EQ(json::parse(run({"stats", "--json", "-p", own_}).out)["advice"].size(), advise(now().stats).size());
  auto file = *engine_.open(directory_.make_file("data", mib));
  std::array<std::byte, 256> memory;
  // Well above the least loss that is told: each process measures for itself what copying costs.
  const auto loses_enough = [&] {
    const auto found = advise(now().stats);
    return !found.empty() && found.front().loss_seconds.value_or(0) > 0.5;
  };
  while (!loses_enough()) {
    for (std::size_t at = 0; at < mib; at += memory.size())
      ASSERT_EQ(file.read(memory.data(), memory.size(), static_cast<std::int64_t>(at)).bytes_done, memory.size());
  }
  const std::string code = "tiny-sequential-calls";
  const auto seen = json::parse(run({"stats", "--json", "-p", own_}).out);
  ASSERT_EQ(seen["advice"].size(), 1U) << seen["advice"];
  EXPECT_EQ(seen["advice"][0]["code"], code);
  EXPECT_GT(seen["advice"][0]["loss_seconds"], 0);
  EXPECT_EQ(seen["advice"][0]["remedy"], "Read larger pieces, or use a batch.");
  EXPECT_EQ(seen["usage"]["sequential_reads"], now().stats.usage.sequential_reads);
  EXPECT_GT(seen["usage"]["copy_ns_per_mib"], 0);
  const auto text = run({"stats", "-p", own_}).out;
  EXPECT_TRUE(contains(text, "\nadvice\n  ")) << text;
  EXPECT_TRUE(contains(text, "on average came from one thread")) << text;
  EXPECT_TRUE(contains(text, "[" + code + "]\n")) << text;
  EXPECT_TRUE(contains(run({"stats"}).out, "  advice: " + code + "\n"));
  EXPECT_TRUE(contains(run({"top", "--once", "--interval", "0.05"}).out, "advice: " + code + "\n"));
  EXPECT_TRUE(contains(run({"stats", "--prometheus", "-p", own_}).out, "penstock_advice_loss_seconds{pid=\"" + own_ + "\""));
}

TEST_F(stats_command, prints_what_prometheus_reads) {
  read(3);
  const auto text = run({"stats", "--prometheus", "-p", own_}).out;
  const std::string labels = "{pid=\"" + own_ + "\",program=\"penstock_cli_tests\",path=\"posix\"";
  const auto pieces = std::to_string(posix().operations);
  EXPECT_TRUE(contains(text, "# TYPE penstock_read_bytes_total counter\n")) << text;
  EXPECT_TRUE(contains(text, "penstock_read_bytes_total" + labels + "} " + std::to_string(posix().bytes - posix().written_bytes) + "\n"))
      << text;
  EXPECT_TRUE(contains(text, "penstock_piece_seconds_bucket" + labels + ",le=\"+Inf\"} " + pieces + "\n")) << text;
  EXPECT_TRUE(contains(text, "penstock_piece_seconds_count" + labels + "} " + pieces + "\n")) << text;
}

// A connection to the endpoint.
class connection {
 public:
  explicit connection(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() { ::close(socket_); }
  void send(const std::string& text) const { (void)::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  // All until the other end closes.
  [[nodiscard]] std::string answer() const {
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t count = 0; (count = ::recv(socket_, part.data(), part.size(), 0)) > 0;)
      text.append(part.data(), static_cast<std::size_t>(count));
    return text;
  }

 private:
  int socket_;
};

class stats_endpoint : public stats_command {
 protected:
  void SetUp() override { ASSERT_TRUE(server_.wait_for_output("/metrics")); }
  // The port is in what it printed, which only finish() tells: so it is chosen here.
  static std::uint16_t free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof at;
    EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&at), length), 0);
    EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &length), 0);
    ::close(socket);
    return ntohs(at.sin_port);
  }
  [[nodiscard]] std::string ask(const std::string& request) const {
    const connection to(port_);
    to.send(request);
    return to.answer();
  }

  const std::uint16_t port_ = free_port();
  program server_{{"stats", "--serve", "127.0.0.1:" + std::to_string(port_)}};
};

TEST_F(stats_endpoint, serves_one_page_and_nothing_else) {
  read(1);
  const auto page = ask("GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n");
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200 OK\r\n")) << page;
  EXPECT_TRUE(contains(page, "penstock_read_bytes_total{pid=\"" + own_)) << page;
  EXPECT_TRUE(ask("GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
  const auto root = ask("GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n");
  EXPECT_TRUE(root.starts_with("HTTP/1.1 302") && contains(root, "\r\nLocation: /metrics\r\n")) << root;
  EXPECT_TRUE(ask("GET /elsewhere HTTP/1.1\r\nHost: [::1]\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask("POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n").starts_with("HTTP/1.1 421"));
  EXPECT_TRUE(ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
  server_.send(SIGTERM);
  EXPECT_EQ(server_.finish().exit_code, 143);
}

TEST_F(stats_endpoint, slow_and_endless_clients_keep_nobody_else_waiting) {
  std::vector<std::unique_ptr<connection>> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(std::make_unique<connection>(port_));
    silent.back()->send("GET /met");
  }
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200"));
  const connection endless(port_);
  endless.send("GET /metrics HTTP/1.1\r\nX: " + std::string(8192, 'x'));
  EXPECT_TRUE(endless.answer().starts_with("HTTP/1.1 431"));
  EXPECT_EQ(silent.back()->answer(), "");  // its time is over
}

}  // namespace
}  // namespace penstock::cli_test
