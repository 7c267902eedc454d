// How many connections a read uses: as many as the server can serve at once, and no more than it accepts.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/web_server.hpp"

namespace penstock::testing::remote_connections_tests {
namespace {

using namespace std::chrono_literals;
using client = web_server::client;
using then = web_server::then;

constexpr std::size_t size = 48 * mib;
constexpr unsigned many = 32;

// Counts the requests for bytes that a server is answering.
class crowd {
 public:
  // Returns the number of requests, including this one.
  std::size_t enter() {
    const std::lock_guard guard(lock_);
    most_ = std::max(most_, ++now_);
    changed_.notify_all();
    return now_;
  }
  void leave() {
    const std::lock_guard guard(lock_);
    --now_;
  }
  // Waits until there have been this many at once.
  bool wait_for(std::size_t count) {
    std::unique_lock guard(lock_);
    return changed_.wait_for(guard, 20s, [&] { return most_ >= count; });
  }
  [[nodiscard]] std::size_t most() {
    const std::lock_guard guard(lock_);
    return most_;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::size_t now_ = 0;
  std::size_t most_ = 0;
};

class remote_connections : public ::testing::Test {
 protected:
  // Delays the server's answers to HEAD, like those of a distant server.
  void answer_late(web_server::answer data = {}) {
    server_.set_answer([data = std::move(data)](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.method != "HEAD") return data ? data(asked, to) : std::nullopt;
      std::this_thread::sleep_for(10ms);
      return std::nullopt;
    });
  }
  file open() {
    auto opened = house_.engine().open(server_.url());
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  void read_all(const file& from, std::uint64_t length = size) {
    guarded_memory memory(house_, memory_place::pageable, length);
    const auto outcome = from.read(memory.data(), length, 0);
    EXPECT_EQ(outcome.bytes_done, length) << told(outcome.error);
    memory.expect(std::span(content_).first(length));
  }
  [[nodiscard]] std::string plan_of(const file& of) {
    const auto plan = house_.engine().explain(of, "host:0", size, 0);
    EXPECT_TRUE(plan.ok());
    std::string all;
    if (plan.ok()) {
      for (const auto& each : plan->remarks) all += each + "\n";
    }
    const auto at = all.find("over up to ");
    return at == std::string::npos ? "" : all.substr(at, all.find(" concurrent") - at);
  }
  bytes content_ = pattern::make(size, 9);
  web_server server_{content_};
  open_house house_{{}, impatient_doors(3)};
};

// Each request is answered only once there are that many: with fewer connections, the read would wait for 20 s.
TEST_F(remote_connections, a_far_server_gets_many_requests_at_once) {
  crowd inside;
  answer_late([&](const web_request&, const client&) -> std::optional<then> {
    inside.enter();
    EXPECT_TRUE(inside.wait_for(many));
    inside.leave();
    return std::nullopt;
  });
  read_all(open());
}

TEST_F(remote_connections, a_small_object_gets_no_more_than_it_has_pieces) {
  answer_late();
  const auto from = open();
  const auto before = server_.connections();
  read_all(from, 3 * mib);
  EXPECT_LE(server_.connections(), before + 3);
}

TEST_F(remote_connections, the_number_is_remembered_when_the_file_is_closed) {
  answer_late();
  auto from = open();
  read_all(from);
  const auto learned = plan_of(from);
  EXPECT_NE(learned, "over up to 8");
  EXPECT_TRUE(from.close().ok());
  answer_late();
  EXPECT_EQ(plan_of(open()), learned);
}

// A server that accepts fewer connections or requests than a read starts with.
struct limit {
  const char* name;
  std::size_t most;
  const char* refusal;  // the response to a request above the limit; empty: the connection is closed without a response
};

class limited_servers : public remote_connections, public ::testing::WithParamInterface<limit> {};

TEST_P(limited_servers, are_read_with_as_many_as_they_accept) {
  const auto& given = GetParam();
  crowd inside;
  std::atomic<unsigned> refused{0};
  answer_late([&](const web_request& asked, const client& to) -> std::optional<then> {
    const bool is_one_too_many = inside.enter() > given.most;
    if (is_one_too_many) {
      ++refused;
      inside.leave();
      to.send(given.refusal);
      return *given.refusal == 0 ? then::close : then::keep;
    }
    const auto body = server_.body_of(asked);
    to.send(server_.head_of(asked));
    to.send(std::string_view(body).substr(0, body.size() / 2));
    // The others arrive while this one is being answered.
    if (refused.load() == 0) {
      EXPECT_TRUE(inside.wait_for(given.most + 1));
    }
    to.send(std::string_view(body).substr(body.size() / 2));
    inside.leave();
    return then::keep;
  });
  const auto from = open();
  read_all(from);
  EXPECT_GT(refused.load(), 0U);
  read_all(from);
}

INSTANTIATE_TEST_SUITE_P(all, limited_servers,
                         ::testing::Values(limit{"four_at_once_or_503", 4, "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"},
                                           limit{"two_at_once_or_429", 2, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"},
                                           limit{"six_at_once_or_closed", 6, ""}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_F(remote_connections, a_server_that_accepts_no_more_is_read_over_those_it_has) {
  answer_late();
  const auto from = open();
  server_.accept_at_most(server_.connections() + 3);
  read_all(from);
  read_all(from);
}

// An eighth of the descriptors, for all servers together, and four connections to each server in any case.
TEST(connections_of_an_engine, leave_descriptors_to_the_program) {
  constexpr rlim_t descriptors = 480;
  constexpr std::size_t most = descriptors / 8 + 4 + 2 * 3;  // each server also answers short requests over connections of their own
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit lower{descriptors, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  {
    const bytes content = pattern::make(size, 9);
    std::array<std::optional<web_server>, 3> servers;
    for (auto& each : servers) {
      each.emplace(content).set_answer([](const web_request& asked, const client&) -> std::optional<then> {
        if (asked.method == "HEAD") std::this_thread::sleep_for(10ms);
        return std::nullopt;
      });
    }
    open_house house{{}, impatient_doors(3)};
    std::vector<bytes> memory(servers.size(), bytes(size));
    std::vector<file> files;
    std::vector<operation> reads;
    for (std::size_t i = 0; i < servers.size(); ++i) {
      auto opened = house.engine().open(servers[i]->url());
      ASSERT_TRUE(opened.ok()) << told(opened.error());
      files.push_back(*std::move(opened));
      reads.push_back(files.back().read_async(memory[i].data(), size, 0));
    }
    std::size_t connections = 0;
    for (std::size_t i = 0; i < servers.size(); ++i) {
      EXPECT_EQ(reads[i].wait().bytes_done, size);
      EXPECT_EQ(memory[i], content);
      connections += servers[i]->connections();
    }
    EXPECT_LE(connections, most);
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace penstock::testing::remote_connections_tests
