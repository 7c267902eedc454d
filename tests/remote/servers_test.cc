// From URLs to requests: kinds of servers, and the credentials used. Over a server that records requests.
#include "remote/servers.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>

#include "penstock/remote_retries.hpp"
#include "remote/net/patience.hpp"
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
    made.stall_after = 10min;  // who waits for it hangs
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

TEST_F(opened_objects, of_a_bucket_are_listed_page_by_page) {
  server_.set_answer([&](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    const bool is_second = asked.target.find("continuation-token=next") != std::string::npos;
    EXPECT_NE(asked.target.find("prefix=a%2F"), std::string::npos) << asked.target;
    EXPECT_NE(asked.target.find("delimiter=%2F"), std::string::npos) << asked.target;
    const auto body = is_second ? std::string("<ListBucketResult><Contents><Key>a/1</Key><Size>7</Size></Contents></ListBucketResult>")
                                : std::string(
                                      "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>"
                                      "<CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes></ListBucketResult>");
    to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    return then::keep;
  });
  const auto found = servers_.list("s3://bucket/a/", of_s3(), true, 10);
  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ(found->at(0).url, "s3://bucket/a/1");
  EXPECT_EQ(found->at(0).size, 7U);
  EXPECT_EQ(found->at(1).url, "s3://bucket/a/b/");
  EXPECT_EQ(found->at(1).size, std::nullopt);
  EXPECT_EQ(servers_.list("s3://bucket/a/", of_s3(), true, 1).error().code(), errc::invalid_argument);
}

class scoped_variable {
 public:
  scoped_variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;
  ~scoped_variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

// A proxy stands for the rest of the world, and notes which host is asked for.
TEST_F(opened_objects, of_a_url_with_a_host_are_asked_for_there_whatever_endpoint_is_set) {
  web_server world{content_};
  world.set_answer([](const web_request&, const web_server::client& to) -> std::optional<then> {
    to.send("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
    return then::close;
  });
  const scoped_variable http("http_proxy", world.origin()), https("https_proxy", world.origin());
  auto named = [this](std::string_view name) -> std::optional<std::string> {
    if (name == "AWS_ENDPOINT_URL" || name == "AWS_ENDPOINT_URL_S3") return server_.origin();
    if (name == "AWS_ACCESS_KEY_ID" || name == "AWS_SECRET_ACCESS_KEY") return "AKIDEXAMPLE";
    return std::nullopt;
  };
  servers all(quick(), {named, kernel_});
  struct row {
    const char* url;
    const char* asked;  // of the proxy
    const char* host;
  };
  const row rows[] = {
      {"https://bucket.s3.us-west-2.amazonaws.com/k", "bucket.s3.us-west-2.amazonaws.com:443", "bucket.s3.us-west-2.amazonaws.com:443"},
      {"https://s3.us-west-2.amazonaws.com/bucket/k", "s3.us-west-2.amazonaws.com:443", "s3.us-west-2.amazonaws.com:443"},
      {"https://bucket.s3.amazonaws.com:8443/k", "bucket.s3.amazonaws.com:8443", "bucket.s3.amazonaws.com:8443"},
      {"http://bucket.s3.us-west-2.amazonaws.com/k", "http://bucket.s3.us-west-2.amazonaws.com/k", "bucket.s3.us-west-2.amazonaws.com:80"},
      {"http://s3.amazonaws.com:8080/bucket/k", "http://s3.amazonaws.com:8080/bucket/k", "s3.amazonaws.com:8080"},
  };
  for (const auto& [url, asked, host] : rows) {
    const auto before = world.requests().size();
    EXPECT_FALSE(all.open(url, {}).ok()) << url;
    ASSERT_GT(world.requests().size(), before) << url;
    EXPECT_EQ(world.requests().at(before).target, asked) << url;
    const auto before_upload = world.requests().size();
    const auto begun = all.begin_upload(url, {});
    ASSERT_TRUE(begun.ok()) << begun.error().message();
    EXPECT_FALSE((*begun)->complete(true).ok()) << url;
    ASSERT_GT(world.requests().size(), before_upload) << url;
    EXPECT_EQ(world.requests().at(before_upload).target, host) << "bytes go through a tunnel";
    remote_options with_endpoint;
    with_endpoint.endpoint = server_.origin();
    const auto refused = all.open(url, with_endpoint).error();
    EXPECT_EQ(refused.code(), errc::invalid_argument) << url;
    EXPECT_NE(refused.message().find("s3://bucket/k"), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(opened_objects, of_s3_are_asked_for_as_the_settings_say) {
  auto how = of_s3();
  how.region = "RegionOne";
  how.requester_pays = true;
  for (const auto* url : {"s3://bucket/key", "s3a://_x_/key", "s3n://ab/a\tb", "s3://my..b/key"}) {
    const auto before = server_.requests().size();
    const auto opened = open(url, how);
    ASSERT_TRUE(opened.ok()) << url << opened.error().message();
    expect_bytes(**opened, 0, 1000);
    for (auto at = before; at < server_.requests().size(); ++at) {
      const auto asked = server_.requests().at(at);
      EXPECT_EQ(asked.header("x-amz-request-payer"), "requester");
      EXPECT_NE(asked.header("authorization").find("/RegionOne/s3/aws4_request"), std::string::npos);
      EXPECT_NE(asked.header("authorization").find("x-amz-request-payer"), std::string::npos) << "it is signed";
    }
  }
}

TEST_F(opened_objects, that_settings_ask_for_at_other_endpoints_are_not_asked_for_elsewhere) {
  auto how = of_s3();
  how.use_fips = true;
  EXPECT_EQ(open("s3://bucket/key", how).error().code(), errc::invalid_argument) << "with an endpoint of one's own";
  how.endpoint.clear();
  const auto refused = open("https://bucket.s3.us-west-2.amazonaws.com/key", how).error();
  EXPECT_NE(refused.message().find("FIPS"), std::string::npos) << refused.message();
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(opened_objects, of_the_hub_are_asked_for_with_its_token) {
  const auto named = [this](std::string_view name) -> std::optional<std::string> {
    if (name == "HF_ENDPOINT") return server_.origin();
    if (name == "HF_TOKEN") return "hf_hidden";
    return std::nullopt;
  };
  servers all(quick(), {named, kernel_});
  auto opened = all.open("hf://owner/name@v1/model.bin", {});
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ(server_.requests().front().target, "/owner/name/resolve/v1/model.bin");
  EXPECT_EQ(server_.requests().front().header("authorization"), "Bearer hf_hidden");
  remote_options own;
  own.session_token = "hf_own";
  const auto before = server_.requests().size();
  ASSERT_TRUE(all.open("hf://datasets/owner/name/x", own).ok());
  EXPECT_EQ(server_.requests().at(before).header("authorization"), "Bearer hf_own");
  EXPECT_EQ(server_.requests().at(before).target, "/datasets/owner/name/resolve/main/x");
  const auto offline = [](std::string_view name) { return name == "HF_HUB_OFFLINE" ? std::optional<std::string>("1") : std::nullopt; };
  servers none(quick(), {offline, kernel_});
  EXPECT_EQ(none.open("hf://owner/name/x", {}).error().code(), errc::permission_denied);
}

std::string page_of_list(const std::string& keys, const std::string& next) {
  std::string body = "<ListBucketResult>" + keys;
  if (!next.empty()) body += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + next + "</NextContinuationToken>";
  body += "</ListBucketResult>";
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

std::string listed(const std::string& key) { return "<Contents><Key>" + key + "</Key><Size>7</Size></Contents>"; }

// Each page as a server without end would send it.
TEST_F(opened_objects, a_list_of_more_pages_than_objects_need_is_refused) {
  using page = std::function<std::string(std::size_t number)>;
  const std::pair<const char*, page> kinds[] = {
      {"always the same token", [](std::size_t n) { return page_of_list(listed(fmt::format("{}", n)), "same"); }},
      {"two tokens in turn", [](std::size_t n) { return page_of_list(listed(fmt::format("{}", n)), n % 2 == 0 ? "one" : "two"); }},
      {"pages without keys", [](std::size_t n) { return page_of_list("", fmt::format("token-{}", n)); }},
      {"one key for ever", [](std::size_t n) { return page_of_list(listed("k"), fmt::format("token-{}", n)); }},
      {"a new key on each page", [](std::size_t n) { return page_of_list(listed(fmt::format("{}", n)), fmt::format("token-{}", n)); }},
  };
  for (const auto& [name, made] : kinds) {
    std::atomic<std::size_t> pages{0};
    server_.set_answer([&, make = made](const web_request&, const web_server::client& to) -> std::optional<then> {
      to.send(make(pages++));
      return then::keep;
    });
    const auto found = servers_.list("s3://bucket/", of_s3(), false, 1'000'000);
    EXPECT_EQ(found.error().code(), errc::io) << name;
    EXPECT_NE(found.error().message().find("does not end"), std::string::npos) << name << found.error().message();
    EXPECT_LT(pages.load(), 2000U) << name;
  }
}

TEST_F(opened_objects, a_list_with_keys_that_do_not_begin_as_asked_is_refused) {
  for (const bool one_level : {false, true}) {
    for (const auto* keys : {"<Contents><Key>b</Key><Size>1</Size></Contents>", "<Contents><Key>a</Key><Size>1</Size></Contents>",
                             "<Contents><Key>a/1</Key><Size>1</Size></Contents><Contents><Key>/etc/x</Key><Size>1</Size></Contents>",
                             "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes>"}) {
      server_.set_answer([&](const web_request&, const web_server::client& to) -> std::optional<then> {
        to.send(page_of_list(keys, ""));
        return then::keep;
      });
      const auto found = servers_.list("s3://bucket/a/", of_s3(), one_level, 10);
      EXPECT_EQ(found.error().code(), errc::io) << keys;
      EXPECT_NE(found.error().message().find("does not begin with the prefix"), std::string::npos) << found.error().message();
    }
  }
}

TEST_F(opened_objects, a_list_without_end_is_refused) {
  server_.set_answer([&](const web_request&, const web_server::client& to) -> std::optional<then> {
    const std::string body =
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken></ListBucketResult>";
    to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    return then::keep;
  });
  const auto found = servers_.list("s3://bucket/", of_s3(), false, 10);
  EXPECT_EQ(found.error().code(), errc::io);
  EXPECT_NE(found.error().message().find("does not end"), std::string::npos) << found.error().message();
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

// Answers with that status, so often.
web_server::answer refuses(int status, int times) {
  return
      [status, left = std::make_shared<std::atomic<int>>(times)](const web_request&, const web_server::client& to) -> std::optional<then> {
        if (left->fetch_sub(1) <= 0) return std::nullopt;
        to.send(fmt::format("HTTP/1.1 {} No\r\nContent-Length: 0\r\n\r\n", status));
        return then::keep;
      };
}

TEST_F(opened_objects, are_asked_for_as_often_as_their_user_says) {
  remote_options how;
  how.attempts = 2;
  how.retry_pause = 1ms;
  how.retries = std::make_shared<remote_retries>();
  const auto opened = open(server_.url(), how);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  server_.set_answer(refuses(503, 1000));
  std::vector<std::byte> memory(1000);
  const auto got = (*opened)->fill(memory.data(), memory.size(), 0);
  EXPECT_NE(got.error.message().find("after 2 tries"), std::string::npos) << got.error.message();
  EXPECT_NE(got.error.message().find("status 503"), std::string::npos) << got.error.message();
  const auto noted = how.retries->take();
  ASSERT_EQ(noted.size(), 1U);
  EXPECT_EQ(std::tuple(noted[0].status, noted[0].attempt, noted[0].attempts, noted[0].pause), std::tuple(503, 1U, 2U, 1ms));
  EXPECT_TRUE(how.retries->take().empty());
  server_.set_answer(refuses(503, 1));
  expect_bytes(**opened, 0, 1000);
}

TEST_F(opened_objects, are_asked_for_again_after_the_answers_that_their_user_names) {
  remote_options how;
  how.retried_statuses = {418};
  const auto opened = open(server_.url(), how);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  server_.set_answer(refuses(418, 1));
  expect_bytes(**opened, 0, 1000);
  server_.set_answer(refuses(503, 1));
  std::vector<std::byte> memory(1000);
  EXPECT_NE((*opened)->fill(memory.data(), memory.size(), 0).error.message().find("status 503"), std::string::npos);
  expect_bytes(**opened, 0, 1000);
}

TEST_F(opened_objects, of_busy_servers_are_asked_again_how_large_they_are) {
  server_.set_answer(refuses(503, 2));
  const auto opened = open(server_.url());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ(server_.requests().size(), 3U);
  server_.set_answer(refuses(503, 1000));
  const auto refused = open(server_.url()).error();
  EXPECT_NE(refused.message().find("after 3 tries"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("status 503"), std::string::npos) << refused.message();
}

TEST_F(opened_objects, of_silent_servers_end_within_the_time_of_their_user) {
  remote_options how;
  how.attempts = 2;
  how.timeout = 40ms;
  how.retry_pause = 1ms;
  how.retries = std::make_shared<remote_retries>();
  const auto opened = open(server_.url(), how);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  server_.set_answer([](const web_request&, const web_server::client& to) -> std::optional<then> {
    to.hold();
    return then::close;
  });
  std::vector<std::byte> memory(1000);
  EXPECT_EQ((*opened)->fill(memory.data(), memory.size(), 0).error.code(), errc::timed_out);
  EXPECT_EQ(open(server_.url(), how).error().code(), errc::timed_out);
  const auto noted = how.retries->take();
  ASSERT_EQ(noted.size(), 2U);
  for (const auto& each : noted) EXPECT_EQ(std::tuple(each.status, each.why), std::tuple(0, errc::timed_out));
}

TEST_F(opened_objects, are_as_large_as_a_get_says_whatever_head_says) {
  std::vector<std::string> heads{"200 OK\r\nContent-Length: 0", "200 OK\r\nTransfer-Encoding: chunked", "204 No\r\nContent-Length: 0", ""};
  for (const int status : {400, 401, 403, 404, 405, 406, 415, 422, 500, 501, 503})
    heads.push_back(fmt::format("{} No\r\nContent-Length: 0", status));
  for (const auto& head : heads) {
    server_.set_answer([head](const web_request& asked, const web_server::client& to) -> std::optional<then> {
      if (asked.method != "HEAD") return std::nullopt;
      if (!head.empty()) to.send(fmt::format("HTTP/1.1 {}\r\n\r\n", head));
      return then::close;
    });
    for (const auto& [url, how] : {std::pair(server_.url(), remote_options()), std::pair(std::string("s3://bucket/key"), of_s3())}) {
      const auto opened = open(url, how);
      ASSERT_TRUE(opened.ok()) << url << ", " << head << ": " << opened.error().message();
      EXPECT_EQ((*opened)->size().value_or(0), content_.size()) << url << ", " << head;
      expect_bytes(**opened, 1000, 5000);
    }
  }
}

TEST_F(opened_objects, are_empty_only_if_a_get_says_so) {
  server_.put({}, "\"empty\"");
  for (const auto* const answer :
       {"", "416 No\r\nContent-Length: 0", "200 OK\r\nContent-Length: 0", "200 OK\r\nTransfer-Encoding: chunked"}) {
    server_.set_answer([answer](const web_request& asked, const web_server::client& to) -> std::optional<then> {
      if (asked.method == "HEAD" || *answer == '\0') return std::nullopt;
      const bool is_refused = answer[0] == '4' && !asked.range;  // it knows no ranges
      to.send(fmt::format("HTTP/1.1 {}\r\n\r\n", is_refused ? "200 OK\r\nContent-Length: 0" : answer));
      if (std::string_view(answer).ends_with("chunked")) to.send("0\r\n\r\n");
      return then::close;
    });
    for (const auto& [url, how] : {std::pair(server_.url(), remote_options()), std::pair(std::string("s3://bucket/key"), of_s3())}) {
      const auto opened = open(url, how);
      ASSERT_TRUE(opened.ok()) << url << ", " << answer << ": " << opened.error().message();
      EXPECT_EQ((*opened)->size().value_or(1), 0U) << url << ", " << answer;
    }
  }
}

TEST_F(opened_objects, are_found_again_where_redirects_lead_once_their_address_has_expired) {
  std::atomic<int> day{0};
  server_.set_answer([&](const web_request& asked, const web_server::client& to) -> std::optional<then> {
    const auto today = fmt::format("/data?day={}", day.load());
    if (asked.target == today) return std::nullopt;
    const bool is_old = asked.target.find('?') != std::string::npos;
    to.send(is_old ? "HTTP/1.1 403 Expired\r\nContent-Length: 0\r\n\r\n"
                   : fmt::format("HTTP/1.1 302 There\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", today));
    return then::keep;
  });
  const auto opened = open(server_.url());
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  for (int i = 0; i < 5; ++i) {
    expect_bytes(**opened, 0, content_.size());
    expect_bytes(**opened, 100, 1000);
    day.fetch_add(1);
  }
}

TEST(pauses, that_a_user_gives_are_doubled_up_to_eight_times) {
  remote_options how;
  how.retry_pause = 500ms;
  const source::remote::patience patient({}, how);
  std::vector<std::chrono::milliseconds> all;
  for (unsigned tries = 1; tries < 7; ++tries) all.push_back(patient.pause_after(tries, 12345, 0ms));
  EXPECT_EQ(all, (std::vector<std::chrono::milliseconds>{500ms, 1s, 2s, 4s, 4s, 4s}));
  EXPECT_EQ(patient.pause_after(1, 12345, 3s), 3s) << "as the server asks";
  EXPECT_EQ(patient.pause_after(1, 12345, 60s), 4s);
}

TEST(pauses, that_nobody_gives_are_drawn) {
  const source::remote::patience patient{source::remote::network_settings()};
  for (unsigned tries = 1; tries < 20; ++tries) EXPECT_LE(patient.pause_after(tries, 99'999'999, 0ms), 20s);
  EXPECT_EQ(patient.pause_after(1, 101 * 7 + 55, 0ms), 55ms);
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
