// From URLs to what is asked: kinds of servers, and whom they are asked as. Over a server that notes what comes.
#include "source/remote/servers.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "support/web_server.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using source::remote::servers;
using then = web_server::then;

std::vector<std::byte> some_content() {
  std::vector<std::byte> made(100'000);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251);
  return made;
}

class opened_objects : public ::testing::Test {
 protected:
  static source::remote::network_settings quick() {
    source::remote::network_settings made;
    made.threads = 1;
    made.attempts = 3;
    made.first_pause = 1ms;
    made.most_pause = 2ms;
    return made;
  }
  result<std::unique_ptr<source::source>> open(const std::string& url, remote_options how = {}) { return servers_.open(url, how); }
  remote_options of_s3() const {
    remote_options made;
    made.endpoint = server_.origin();
    made.region = "eu-central-1";
    made.access_key_id = "AKIDEXAMPLE";
    made.secret_access_key = "hidden-secret";
    return made;
  }
  void expect_bytes(source::source& from, std::uint64_t offset, std::uint64_t length) {
    std::vector<std::byte> memory(length);
    const auto got = from.fill(memory.data(), length, offset);
    EXPECT_TRUE(got.ok()) << got.error.message();
    EXPECT_TRUE(std::equal(memory.begin(), memory.end(), content_.begin() + static_cast<std::ptrdiff_t>(offset)));
  }

  std::vector<std::byte> content_ = some_content();
  web_server server_{content_};
  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  servers servers_{quick(), {{}, kernel_}};
};

TEST_F(opened_objects, of_s3_are_asked_for_with_signatures_of_their_region) {
  const auto opened = open("s3://bucket/a key", of_s3());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  expect_bytes(**opened, 1000, 5000);
  for (const auto& each : server_.requests()) {
    EXPECT_EQ(each.target, "/bucket/a%20key");
    EXPECT_NE(each.header("authorization").find("Credential=AKIDEXAMPLE/"), std::string::npos);
    EXPECT_NE(each.header("authorization").find("/eu-central-1/s3/aws4_request"), std::string::npos);
  }
}

TEST_F(opened_objects, of_s3_go_to_the_region_that_the_bucket_is_in) {
  server_.set_answer([](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    if (asked.header("authorization").find("/eu-west-3/") != std::string::npos) return std::nullopt;
    to.send("HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-west-3\r\nContent-Length: 0\r\n\r\n");
    return then::keep;
  });
  const auto opened = open("s3://bucket/key", of_s3());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  expect_bytes(**opened, 0, content_.size());
}

TEST_F(opened_objects, of_s3_are_asked_for_by_the_clock_of_their_server) {
  // An hour ahead of here.
  server_.set_answer([](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    const auto there = std::time(nullptr) + 3600;
    std::tm parts{};
    gmtime_r(&there, &parts);
    std::array<char, 64> text{};
    std::strftime(text.data(), text.size(), "%Y%m%dT%H", &parts);
    if (asked.header("x-amz-date").rfind(text.data(), 0) == 0) return std::nullopt;
    std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    const std::string body = asked.method == "HEAD" ? "" : "<Error><Code>RequestTimeTooSkewed</Code><Message>Late</Message></Error>";
    to.send(fmt::format("HTTP/1.1 403 No\r\nDate: {}\r\nContent-Length: {}\r\n\r\n{}", text.data(), body.size(), body));
    return then::keep;
  });
  const auto opened = open("s3://bucket/key", of_s3());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  expect_bytes(**opened, 0, content_.size());
}

TEST_F(opened_objects, of_s3_that_are_refused_say_so_in_its_words_and_never_with_secrets) {
  server_.set_answer([](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    const std::string body = asked.method == "HEAD" ? "" : "<Error><Code>AccessDenied</Code><Message>Not you</Message></Error>";
    to.send(fmt::format("HTTP/1.1 403 No\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    return then::keep;
  });
  const auto refused = open("s3://bucket/key", of_s3()).error();
  EXPECT_EQ(refused.code(), errc::permission_denied) << refused.message();
  EXPECT_NE(refused.message().find("s3://bucket/key: AccessDenied: Not you"), std::string::npos) << refused.message();
  EXPECT_EQ(refused.message().find("hidden"), std::string::npos) << refused.message();
}

TEST_F(opened_objects, of_s3_that_are_slowed_down_are_asked_for_again) {
  const auto opened = open("s3://bucket/key", of_s3());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  std::atomic<int> refusals{2};
  server_.set_answer([&](const web_request&, const web_server::client& to) -> std::optional<then> {
    if (refusals.fetch_sub(1) <= 0) return std::nullopt;
    const std::string body = "<Error><Code>SlowDown</Code><Message>Please</Message></Error>";
    to.send(fmt::format("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    return then::keep;
  });
  expect_bytes(**opened, 0, 1000);
  EXPECT_EQ(servers_.net().counts().retries, 2U);
  EXPECT_EQ(servers_.net().counts().throttled, 2U);
}

TEST_F(opened_objects, of_s3_without_credentials_are_not_asked_for) {
  auto how = of_s3();
  how.access_key_id.clear();
  how.secret_access_key.clear();
  how.profile = "nobody";
  EXPECT_FALSE(open("s3://bucket/key", how).ok());
  EXPECT_TRUE(server_.requests().empty());
  how.profile.clear();
  how.anonymous = true;
  const auto opened = open("s3://bucket/key", how);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ(server_.requests().front().header("authorization"), "");
}

TEST_F(opened_objects, of_s3_whose_errors_come_in_chunks_are_asked_for_again) {
  const auto opened = open("s3://bucket/key", of_s3());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  std::atomic<int> refusals{1};
  server_.set_answer([&](const web_request&, const web_server::client& to) -> std::optional<then> {
    if (refusals.fetch_sub(1) <= 0) return std::nullopt;
    const std::string body = "<Error><Code>RequestTimeout</Code><Message>Late</Message></Error>";
    to.send(fmt::format("HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body));
    return then::keep;
  });
  expect_bytes(**opened, 0, 1000);
  EXPECT_EQ(servers_.net().counts().retries, 1U);
}

// A proxy, say, that does not know of offsets; or the file has become shorter.
TEST_F(opened_objects, of_webhdfs_are_never_more_or_less_than_was_asked_for) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{50'000}}) {
    server_.set_answer([&](const web_request& asked, const web_server::client& to) -> std::optional<then> {
      const bool of_status = asked.target.find("GETFILESTATUS") != std::string::npos;
      const auto body = of_status ? std::string(R"({"FileStatus": {"length": 100000, "type": "FILE"}})") : std::string(length, 'x');
      to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
      return then::close;
    });
    const auto opened = open(server_.url("/webhdfs/v1/file"));
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    std::vector<std::byte> memory(1000 + 100'000, std::byte{7});
    const auto got = (*opened)->fill(memory.data(), 1000, 0);
    EXPECT_EQ(got.error.code(), errc::io) << got.error.message();
    EXPECT_TRUE(std::all_of(memory.begin() + 1000, memory.end(), [](std::byte each) { return each == std::byte{7}; }));
  }
}

// A name node that sends each reader to a data node, which the server is, too.
TEST_F(opened_objects, of_webhdfs_are_read_from_the_data_nodes_that_the_name_node_names) {
  std::atomic<bool> cuts{true};
  server_.set_answer([&](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    const auto has = [&](std::string_view text) { return asked.target.find(text) != std::string::npos; };
    const auto number = [&](const std::string& name) {
      return std::stoull(asked.target.substr(asked.target.find(name + "=") + name.size() + 1));
    };
    EXPECT_TRUE(has("user.name=somebody")) << asked.target;
    if (has("op=GETFILESTATUS")) {
      const auto body = fmt::format(R"({{"FileStatus": {{"length": {}, "type": "FILE", "owner": {{"x": [1, 2]}}}}}})", content_.size());
      to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    } else if (has("/node/")) {
      const auto offset = number("offset");
      auto body = std::string(reinterpret_cast<const char*>(content_.data()) + offset, number("length"));
      to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.size()));
      if (cuts.exchange(false)) {
        to.send(body.substr(0, body.size() / 3));
        return then::close;
      }
      to.send(body);
    } else {
      to.send(fmt::format("HTTP/1.1 307 There\r\nLocation: {}/node{}\r\nContent-Length: 0\r\n\r\n", server_.origin(), asked.target));
    }
    return then::keep;
  });
  remote_options how;
  how.user = "somebody";
  const auto opened = open(server_.url("/webhdfs/v1/folder/file"), how);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ((*opened)->size().value_or(0), content_.size());
  expect_bytes(**opened, 12'345, 50'000);
  expect_bytes(**opened, 0, content_.size());
}

TEST_F(opened_objects, of_another_kind_than_their_url_are_refused) {
  remote_options how;
  how.kind = remote_kind::webhdfs;
  EXPECT_EQ(open(server_.url(), how).error().code(), errc::invalid_argument);
  how.kind = remote_kind::s3;
  EXPECT_EQ(open(server_.url(), how).error().code(), errc::invalid_argument);
  how.kind = remote_kind::http;
  EXPECT_TRUE(open(server_.url(), how).ok());
}

}  // namespace
}  // namespace penstock::testing
