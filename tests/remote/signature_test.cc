// Signatures, compared with those that AWS publishes: its test suite for Signature Version 4, and the examples of the S3 API reference.
#include "remote/credentials/signature.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sys/secret.hpp"

namespace penstock::source::remote {
namespace {

constexpr auto suite_time = wall_time(std::chrono::seconds(1440938160));     // 2015-08-30T12:36:00Z
constexpr auto examples_time = wall_time(std::chrono::seconds(1369353600));  // 2013-05-24T00:00:00Z

std::shared_ptr<const credentials> make_keys(const std::string& id, std::string_view secret, std::string_view token = {}) {
  auto made = std::make_shared<credentials>();
  made->access_key_id = id;
  made->secret_access_key = secret_text(secret);
  made->session_token = secret_text(token);
  return made;
}

const std::shared_ptr<const credentials>& suite_keys() {
  static const auto keys = make_keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
  return keys;
}

std::string authorization_of(const result<std::vector<header>>& added) {
  if (!added) return std::string(added.error().message());
  return std::string(header_value(*added, "Authorization").value_or(""));
}

struct vector_of_suite {
  const char* name;
  const char* method;
  const char* url;
  std::vector<header> headers;
  const char* body;
  const char* signed_headers;
  const char* signature;
};

class signature : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = sys::can_prove(); !problem.ok()) GTEST_SKIP() << problem.message();
  }

  static std::string sign_suite(const vector_of_suite& one, const std::shared_ptr<const credentials>& keys) {
    signer by({.region = "us-east-1", .service = "service"});
    const auto address = *parse_http_url(one.url);
    const auto hash = *payload_hash(one.body);
    return authorization_of(
        by.sign({.method = one.method, .address = address, .headers = one.headers, .payload_hash = hash}, keys, suite_time));
  }

  static std::string sign_example(std::string_view method, std::string_view text, const std::vector<header>& headers,
                                  std::string_view hash) {
    signer by({.region = "us-east-1", .service = "s3"});
    const auto keys = make_keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    const auto address = *parse_http_url(text);
    return authorization_of(by.sign({.method = method, .address = address, .headers = headers, .payload_hash = hash}, keys, examples_time));
  }
};

TEST_F(signature, those_of_the_published_suite_are_made) {
  const std::vector<vector_of_suite> suite{
      {"get-vanilla",
       "GET",
       "https://example.amazonaws.com/",
       {},
       "",
       "host;x-amz-date",
       "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
      {"get-unreserved",
       "GET",
       "https://example.amazonaws.com/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
       {},
       "",
       "host;x-amz-date",
       "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
      {"get-utf8",
       "GET",
       "https://example.amazonaws.com/\xe1\x88\xb4",
       {},
       "",
       "host;x-amz-date",
       "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
      {"get-space",
       "GET",
       "https://example.amazonaws.com/example space/",
       {},
       "",
       "host;x-amz-date",
       "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
      {"get-vanilla-query-order-key-case",
       "GET",
       "https://example.amazonaws.com/?Param2=value2&Param1=value1",
       {},
       "",
       "host;x-amz-date",
       "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
      {"get-vanilla-query-order-value",
       "GET",
       "https://example.amazonaws.com/?Param1=value2&Param1=value1",
       {},
       "",
       "host;x-amz-date",
       "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
      {"get-vanilla-utf8-query",
       "GET",
       "https://example.amazonaws.com/?\xe1\x88\xb4=bar",
       {},
       "",
       "host;x-amz-date",
       "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
      {"get-header-key-duplicate",
       "GET",
       "https://example.amazonaws.com/",
       {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
       "",
       "host;my-header1;x-amz-date",
       "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
      {"get-header-value-order",
       "GET",
       "https://example.amazonaws.com/",
       {{"My-Header1", "value4"}, {"My-Header1", "value1"}, {"My-Header1", "value3"}, {"My-Header1", "value2"}},
       "",
       "host;my-header1;x-amz-date",
       "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
      {"get-header-value-trim",
       "GET",
       "https://example.amazonaws.com/",
       {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
       "",
       "host;my-header1;my-header2;x-amz-date",
       "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
      {"post-x-www-form-urlencoded",
       "POST",
       "https://example.amazonaws.com/",
       {{"Content-Type", "application/x-www-form-urlencoded"}},
       "Param1=value1",
       "content-type;host;x-amz-date",
       "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
  };
  for (const auto& one : suite) {
    EXPECT_EQ(sign_suite(one, suite_keys()),
              fmt::format("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders={}, Signature={}",
                          one.signed_headers, one.signature))
        << one.name;
  }
}

TEST_F(signature, a_session_token_is_sent_and_signed) {
  constexpr std::string_view token = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";
  const auto keys = make_keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token);
  const vector_of_suite one{"get-vanilla-with-session-token", "GET", "https://example.amazonaws.com/", {}, "", "", ""};
  EXPECT_EQ(sign_suite(one, keys),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date;x-amz-security-token, "
            "Signature=07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8");
}

TEST_F(signature, those_of_the_s3_examples_are_made) {
  const auto expected = [](std::string_view signed_headers, std::string_view made) {
    return fmt::format(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders={}, Signature={}",
        signed_headers, made);
  };
  EXPECT_EQ(sign_example("GET", "https://examplebucket.s3.amazonaws.com/test.txt", {{"Range", "bytes=0-9"}}, empty_payload_hash),
            expected("host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
  EXPECT_EQ(sign_example("PUT", parse_remote_url("https://examplebucket.s3.amazonaws.com/test$file.text").value_or({}).address.unredacted(),
                         {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         *payload_hash("Welcome to Amazon S3.")),
            expected("date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
  EXPECT_EQ(sign_example("GET", "https://examplebucket.s3.amazonaws.com/?lifecycle", {}, empty_payload_hash),
            expected("host;x-amz-content-sha256;x-amz-date", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_EQ(sign_example("GET", "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", {}, empty_payload_hash),
            expected("host;x-amz-content-sha256;x-amz-date", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST_F(signature, the_canonical_request_of_an_example_is_the_published_one) {
  const auto address = *parse_http_url("https://examplebucket.s3.amazonaws.com/test.txt");
  const std::vector<header> headers{
      {"x-amz-date", "20130524T000000Z"}, {"X-Amz-Content-Sha256", std::string(empty_payload_hash)}, {"Range", "bytes=0-9"}};
  const auto made = make_canonical({.address = address, .headers = headers}, headers);
  EXPECT_EQ(*payload_hash(made.text), "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972");
}

TEST_F(signature, a_query_is_signed_decoded_once_and_encoded_once) {
  const auto address = *parse_http_url("https://h/?b&a=x%2fy&a=x+y&c=1=2&&%41=%");
  const auto text = make_canonical({.address = address, .headers = {}}, {}).text;
  EXPECT_NE(text.find("\nA=%25&a=x%2By&a=x%2Fy&b=&c=1%3D2\n"), std::string::npos) << text;
}

TEST_F(signature, a_port_that_is_not_the_schemes_is_signed) {
  const auto address = *parse_http_url("http://127.0.0.1:9000/b/k");
  EXPECT_NE(make_canonical({.address = address, .headers = {}}, {{"Host", "other"}}).text.find("\nhost:127.0.0.1:9000\n"),
            std::string::npos);
}

TEST_F(signature, anonymous_requests_are_not_signed) {
  signer by({.region = "us-east-1", .service = "s3"});
  const auto address = *parse_http_url("https://h/");
  const auto added = by.sign({.address = address, .headers = {}}, std::make_shared<const credentials>(), suite_time);
  ASSERT_TRUE(added.ok());
  EXPECT_TRUE(added->empty());
}

TEST_F(signature, a_new_day_and_new_keys_have_another_signature) {
  signer by({.region = "us-east-1", .service = "s3"});
  const auto address = *parse_http_url("https://h/");
  const auto sign = [&](const std::shared_ptr<const credentials>& keys, wall_time at) {
    return authorization_of(by.sign({.address = address, .headers = {}}, keys, at));
  };
  const auto other = make_keys("AKIDEXAMPLE", "another");
  const auto first = sign(suite_keys(), suite_time);
  EXPECT_EQ(sign(suite_keys(), suite_time), first);
  EXPECT_NE(sign(other, suite_time), first);
  EXPECT_EQ(sign(suite_keys(), suite_time), first);
  signer fresh({.region = "us-east-1", .service = "s3"});
  EXPECT_EQ(sign(suite_keys(), suite_time + std::chrono::hours(24)),
            authorization_of(fresh.sign({.address = address, .headers = {}}, suite_keys(), suite_time + std::chrono::hours(24))));
}

TEST_F(signature, no_header_has_the_secret) {
  signer by({.region = "us-east-1", .service = "s3"});
  const auto address = *parse_http_url("https://h/");
  const auto added = by.sign({.address = address, .headers = {}}, suite_keys(), suite_time);
  ASSERT_TRUE(added.ok());
  for (const auto& [name, value] : *added) EXPECT_EQ(value.find("wJalr"), std::string::npos) << name;
}

TEST(signing_time, is_that_of_utc) {
  EXPECT_EQ(signing_time(suite_time), "20150830T123600Z");
  EXPECT_EQ(signing_time(examples_time - std::chrono::milliseconds(1)), "20130523T235959Z");
  EXPECT_EQ(signing_time(wall_time(std::chrono::seconds(1709251199))), "20240229T235959Z");
}

}  // namespace
}  // namespace penstock::source::remote
