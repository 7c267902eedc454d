// Signatures, keys and responses with third-party S3 servers: what they accept and return.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "remote/credentials/signature.hpp"
#include "remote/net/control.hpp"
#include "remote/net/s3_error.hpp"
#include "remote/net/url.hpp"
#include "remote/outside_world.hpp"
#include "remote/plain_http.hpp"
#include "support/s3_server.hpp"

namespace penstock::source::remote {
namespace {

class s3_servers : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!server.is_up()) GTEST_SKIP() << server.why();
    place.endpoint = *parse_http_url(server["endpoint"]);
    keys = make_keys(server["secret_key"]);
  }

  std::shared_ptr<const credentials> make_keys(std::string_view secret) const {
    return std::make_shared<const credentials>(credentials{server["access_key"], secret_text(secret), {}, {}, "a test"});
  }

  control_answer ask(std::string_view method, const url& address, std::string body = {}, std::vector<header> headers = {}) {
    signer by({.region = server["region"], .service = "s3"});
    const auto hash = *payload_hash(body);
    const auto added =
        by.sign({.method = method, .address = address, .headers = headers, .payload_hash = hash}, keys, std::chrono::system_clock::now());
    EXPECT_TRUE(added.ok()) << added.error().message();
    headers.insert(headers.end(), added->begin(), added->end());
    control_request request;
    request.method = method;
    request.address = address;
    request.headers = std::move(headers);
    request.body = std::move(body);
    return *ask_plainly(request);
  }

  control_answer ask_object(std::string_view method, const std::string& key, std::string body = {}, std::vector<header> headers = {}) {
    return ask(method, *s3_address({server["bucket"], key, {}}, place), std::move(body), std::move(headers));
  }

  object_list list(std::string_view prefix) {
    url address = *place.endpoint;
    address.path = "/" + server["bucket"];
    address.query = url_query(list_query(prefix, {}));
    const auto answer = ask("GET", address);
    const auto made = parse_object_list(answer.body);
    EXPECT_TRUE(made.ok()) << made.error().message() << "\n" << answer.status_code << answer.body;
    return made.ok() ? *made : object_list{};
  }

  testing::s3_server server{GetParam()};
  s3_place place;
  std::shared_ptr<const credentials> keys;
};

// But for a backslash, which SeaweedFS takes for a slash.
TEST_P(s3_servers, take_keys_of_any_characters_and_give_them_back) {
  std::vector<std::string> names{
      "plain",     "a b",         "day=1/part+0.bin", "a%20b",      "100%",       "what?#&",        "\xc3\xa4/\xe2\x82\xac",
      "~-_.!'()*", "a@b:c,d;e$f", "[x]{y}",           "\"quoted\"", "<tag>&amp;", "deep/er/.hidden"};
  for (const auto& name : names) {
    const auto put = ask_object("PUT", "keys/" + name, "content of " + name);
    EXPECT_TRUE(put.status_code == 200 || put.status_code == 201) << name << ": " << shown_error(put.status_code, parse_s3_error(put.body));
    const auto got = ask_object("GET", "keys/" + name);
    EXPECT_EQ(got.status_code, 200) << name;
    EXPECT_EQ(got.body, "content of " + name);
  }
  std::vector<std::string> listed;
  for (const auto& one : list("keys/").objects) {
    listed.push_back(one.key.substr(5));
    EXPECT_EQ(one.size_bytes, std::string("content of ").size() + listed.back().size()) << one.key;
  }
  std::ranges::sort(listed);
  std::ranges::sort(names);
  EXPECT_EQ(listed, names);
}

TEST_P(s3_servers, check_the_headers_that_are_signed) {
  ASSERT_LT(ask_object("PUT", "object", "0123456789").status_code, 300);
  const auto part = ask_object("GET", "object", {}, {{"Range", "bytes=2-4"}, {"x-amz-meta-more", "  two  words "}});
  EXPECT_TRUE(part.status_code == 206 || part.status_code == 200) << part.status_code;
  EXPECT_EQ(part.body, "234");
}

TEST_P(s3_servers, say_why_they_refuse) {
  const auto missing = ask_object("GET", "missing");
  EXPECT_EQ(missing.status_code, 404);
  EXPECT_EQ(parse_s3_error(missing.body).code, "NoSuchKey") << missing.body;
  if (GetParam() == std::string("moto")) return;  // which takes any signature
  keys = make_keys("another");
  const auto refused = ask_object("GET", "missing");
  EXPECT_EQ(refused.status_code, 403);
  EXPECT_EQ(parse_s3_error(refused.body).code, "SignatureDoesNotMatch") << refused.body;
}

TEST(sts_server, hands_out_the_keys_of_a_role) {
  testing::s3_server server("moto");
  if (!server.is_up()) GTEST_SKIP() << server.why();
  testing::outside_world outside;
  outside.now = std::chrono::system_clock::now();
  outside.serve = ask_plainly;
  outside.variables["AWS_ENDPOINT_URL_STS"] = server["endpoint"];
  outside.variables["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/reader";
  outside.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = outside.write("token", "a.b+c=");
  const auto found = find_credentials({}, outside.world());
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_FALSE(found->anonymous());
  EXPECT_FALSE(found->session_token.empty());
  EXPECT_GT(found->expires_at, outside.now);
}

INSTANTIATE_TEST_SUITE_P(kinds, s3_servers, ::testing::Values("seaweedfs", "moto", "rclone"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace penstock::source::remote
