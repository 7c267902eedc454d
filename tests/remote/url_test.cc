// How URLs are classified, and which characters reach a request line.
#include "remote/net/url.hpp"

#include "base/printable.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace penstock::source::remote {
namespace {

TEST(url, a_bucket_is_listed_by_its_url) {
  for (const auto& [text, bucket, prefix] : std::vector<std::array<std::string, 3>>{{"s3://bucket", "bucket", ""},
                                                                                    {"s3://bucket/", "bucket", ""},
                                                                                    {"S3://bucket/a/b?c", "bucket", "a/b?c"},
                                                                                    {"s3://bucket//x", "bucket", "/x"}}) {
    const auto made = parse_s3_prefix(text);
    ASSERT_TRUE(made.ok()) << text << made.error().message();
    EXPECT_EQ(made->bucket, bucket) << text;
    EXPECT_EQ(made->key, prefix) << text;
  }
  for (const char* const text : {"https://bucket.s3.amazonaws.com/", "s3://", "s3://b@d/", "s3:///x", "s3://bucket/\xff", "az://bucket/"})
    EXPECT_EQ(parse_s3_prefix(text).error().code(), errc::invalid_argument) << text;
  EXPECT_EQ(s3_bucket_address("bucket", {.region = "eu-west-1", .endpoint = std::nullopt})->unredacted(),
            "https://bucket.s3.eu-west-1.amazonaws.com/");
  EXPECT_EQ(s3_bucket_address("bucket", {.region = "eu-west-1", .endpoint = parse_http_url("http://h:9/s3").value_or(url())})->unredacted(),
            "http://h:9/s3/bucket/");
}

url read_url(std::string_view text) {
  const auto made = parse_http_url(text);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return made.ok() ? *made : url{};
}

remote_url read_remote(std::string_view text) {
  const auto made = parse_remote_url(text);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return made.ok() ? *made : remote_url{};
}

std::string refusal_of(std::string_view text) {
  const auto made = parse_remote_url(text);
  EXPECT_FALSE(made.ok()) << text;
  EXPECT_EQ(made.error().code(), errc::invalid_argument);
  return std::string(made.error().message());
}

url address_of(std::string_view text, const s3_place& place) {
  const auto made = s3_address(read_remote(text).object, place);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return made.ok() ? *made : url{};
}

TEST(remote_url, what_has_a_scheme_is_a_url_but_for_files) {
  for (const char* const text : {"http://h/", "HTTPS://h", "s3://bucket/key", "S3://", "http://", "gs://bucket/key", "abfss://c@a/b",
                                 "x-y+z.1://", "s3:/bucket/key", "http:/h"})
    EXPECT_TRUE(is_url(text)) << text;
  for (const char* const text :
       {"", "/data/http://h", "http", "file:///x", "FILE:///x", "://", "a.bin", "1s://b", "a b://c", "x:/y", "s3:key"})
    EXPECT_FALSE(is_url(text)) << text;
}

TEST(remote_url, a_file_may_be_named_by_a_url) {
  EXPECT_EQ(file_path_of("file:///a/b%20c%25"), "/a/b c%");
  EXPECT_EQ(file_path_of("file://localhost/a"), "/a");
  EXPECT_EQ(file_path_of("file://a/b"), "a/b");
  EXPECT_EQ(file_path_of("file:///100%"), "/100%");
  for (const std::string text : {"/a/file:///b", "a%20b", "s3://bucket/key", ""}) EXPECT_EQ(file_path_of(text), text);
}

TEST(remote_url, other_schemes_are_refused_with_what_to_do) {
  struct row {
    const char* text;
    const char* said;
  };
  for (const auto& [text, said] : {row{"az://container/blob", "with its SAS"}, row{"abfss://container@account/blob", "with its SAS"},
                                   row{"hdfs://node/x", "WebHDFS"}, row{"ftp://h/x", "Supported schemes are http://"},
                                   row{"s4://b/k", "Supported schemes are http://, https://, s3://, gs://, hf:// and file://"}}) {
    const auto refused = parse_remote_url(text).error();
    EXPECT_EQ(refused.code(), errc::unsupported) << text;
    EXPECT_NE(refused.message().find("is not supported"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find(said), std::string::npos) << refused.message();
  }
  EXPECT_NE(refusal_of("s3:/bucket/key").find("write s3://"), std::string::npos);
}

TEST(remote_url, other_schemes_of_s3_name_the_same_object) {
  for (const char* const text : {"s3://bucket/a/b", "s3a://bucket/a/b", "s3n://bucket/a/b", "S3A://bucket/a/b"}) {
    const auto one = read_remote(text);
    EXPECT_EQ(one.kind, url_kind::s3) << text;
    EXPECT_EQ(one.shown(), "s3://bucket/a/b") << text;
    EXPECT_EQ(parse_s3_prefix(text)->key, "a/b") << text;
  }
}

TEST(remote_url, a_file_of_the_hub_has_an_address) {
  const auto at = [](std::string_view text) {
    const auto made = hub_address(text, "https://huggingface.co/");
    return made && made->ok() ? **made : "none";
  };
  EXPECT_EQ(at("hf://owner/name/model.safetensors"), "https://huggingface.co/owner/name/resolve/main/model.safetensors");
  EXPECT_EQ(at("hf://models/owner/name/a/b c"), "https://huggingface.co/owner/name/resolve/main/a/b%20c");
  EXPECT_EQ(at("hf://datasets/owner/name@v1.0/a"), "https://huggingface.co/datasets/owner/name/resolve/v1.0/a");
  EXPECT_EQ(at("hf://spaces/owner/name@refs%2Fpr%2F1/a"), "https://huggingface.co/spaces/owner/name/resolve/refs%2Fpr%2F1/a");
  for (const char* const text : {"hf://", "hf://owner", "hf://owner/name", "hf://owner/name/", "hf:///name/a", "hf://owner//a",
                                 "hf://owner/name@/a", "hf://datasets/owner/name"})
    EXPECT_EQ(at(text), "none") << text;
  EXPECT_FALSE(hub_address("s3://owner/name/a", "https://huggingface.co"));
}

TEST(remote_url, parts_of_a_url_are_told_apart) {
  const auto whole = read_url("HTTPS://Example.COM:8443/a/b?x=1&y=2#part");
  EXPECT_TRUE(whole.tls);
  EXPECT_EQ(whole.host, "example.com");
  EXPECT_EQ(whole.port, 8443);
  EXPECT_EQ(whole.path, "/a/b");
  EXPECT_EQ(whole.query.unredacted(), "x=1&y=2");
  EXPECT_EQ(whole.unredacted(), "https://example.com:8443/a/b?x=1&y=2");
  EXPECT_EQ(whole.unredacted_target(), "/a/b?x=1&y=2");
  EXPECT_EQ(whole.shown(), "https://example.com:8443/a/b");
  EXPECT_EQ(read_url("http://h").unredacted_target(), "/");
  EXPECT_EQ(read_url("http://h?q").unredacted_target(), "/?q");
  EXPECT_EQ(read_url("http://h:80/").authority(), "h");
  EXPECT_EQ(read_url("http://h:443/").authority(), "h:443");
  EXPECT_EQ(read_url("http://h:/x").port, 80);
  EXPECT_EQ(read_url("https://h/x").port, 443);
}

TEST(remote_url, an_ipv6_address_stands_in_brackets) {
  const auto six = read_url("http://[2001:DB8::1]:8000/x");
  EXPECT_EQ(six.host, "2001:db8::1");
  EXPECT_EQ(six.authority(), "[2001:db8::1]:8000");
  EXPECT_EQ(read_url("http://[::1]").authority(), "[::1]");
  for (const char* const text :
       {"http://[::1", "http://[]/", "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://::1/", "http://[1.2.3.4]/"})
    refusal_of(text);
}

TEST(remote_url, what_may_not_stand_in_a_path_is_encoded_and_what_is_encoded_stays) {
  EXPECT_EQ(read_url("http://h/a b/%20/\xc3\xa4/100%/%zz").path, "/a%20b/%20/%C3%A4/100%25/%25zz");
  EXPECT_EQ(read_url("http://h/x?a=<b>&c=%41").query.unredacted(), "a=%3Cb%3E&c=%41");
  EXPECT_EQ(read_url("http://h/../a/./b//c").path, "/../a/./b//c");
}

TEST(remote_url, bad_urls_are_refused_in_words) {
  EXPECT_EQ(refusal_of("http://u:hidden@h/x"), "URL http://...: a URL must not contain a user name or password");
  EXPECT_EQ(refusal_of("http:///x"), "URL http:///x: its host must be a name or an IP address");
  EXPECT_EQ(refusal_of("http://h:0/x"), "URL http://h:0/x: its port must be a number from 1 to 65535");
  EXPECT_EQ(refusal_of("http://h/a\r\nHost: x"), "URL http://h/a??Host: x: it contains a control character");
  for (const char* const text : {"http://h:65536/", "http://h:-1/", "http://h:1x/", "http://a..b/", "http://.a/", "http://a b/",
                                 "http://a\\b/", "http://a%00b/", "http://a,b/", "http://\xc3\xa4/"})
    refusal_of(text);
  refusal_of("http://" + std::string(64, 'a') + "/");
  refusal_of("http://h/" + std::string(most_url_bytes, 'a'));
  EXPECT_TRUE(parse_http_url("http://h/" + std::string(most_url_bytes - 9, 'a')).ok());
}

TEST(remote_url, no_refusal_shows_a_password_or_a_query) {
  for (const char* const text :
       {"http://u:QQ@h/x", "http://u:QQ/QQ@h/x", "http://u:QQ?QQ@h/x", "http://a b/?X-Amz-Signature=QQ",
        "http://a b/?who=a@b&X-Amz-Signature=QQ", "s3://u:QQ@bucket/key", "https://b.s3.amazonaws.com/%ff?sig=QQ"}) {
    const auto told = refusal_of(text);
    EXPECT_EQ(told.find("QQ"), std::string::npos) << told;
  }
}

TEST(remote_url, a_key_behind_s3_is_taken_as_it_is) {
  struct row {
    const char* key;
    const char* encoded;
  };
  for (const auto& [key, encoded] : {row{"a/b.bin", "a/b.bin"}, row{"a b", "a%20b"}, row{"a%20b", "a%2520b"}, row{"a+b", "a%2Bb"},
                                     row{"day=1/x", "day%3D1/x"}, row{"what?#", "what%3F%23"}, row{"/lead", "/lead"}, row{"a//b", "a//b"},
                                     row{"../x/./y", "../x/./y"}, row{"\xc3\xa4\xe2\x82\xac", "%C3%A4%E2%82%AC"}, row{"~-_.", "~-_."},
                                     row{"a\tb\n", "a%09b%0A"}, row{"a@b:c", "a%40b%3Ac"}, row{"100%", "100%25"}}) {
    const auto text = std::string("s3://my-bucket/") + key;
    const auto one = read_remote(text);
    EXPECT_TRUE(one.by_name);
    EXPECT_EQ(one.kind, url_kind::s3);
    EXPECT_EQ(one.object.bucket, "my-bucket");
    EXPECT_EQ(one.object.key, key);
    EXPECT_EQ(one.shown(), printable_text(text));
    EXPECT_EQ(address_of(text, {.region = "eu-west-1", .endpoint = {}}).unredacted(),
              std::string("https://my-bucket.s3.eu-west-1.amazonaws.com/") + encoded);
  }
}

// A query may give access.
static_assert(!fmt::is_formattable<url_query>::value);

TEST(remote_url, a_bucket_or_an_access_point_may_be_named_by_its_arn) {
  const auto bucket = read_remote("s3://arn:aws:s3:::my-bucket/a/b");
  EXPECT_EQ(bucket.shown(), "s3://arn:aws:s3:::my-bucket/a/b");
  EXPECT_EQ(address_of("s3://arn:aws:s3:::my-bucket/a/b", {.region = "eu-west-1", .endpoint = {}}).unredacted(),
            "https://my-bucket.s3.eu-west-1.amazonaws.com/a/b");
  EXPECT_EQ(parse_s3_prefix("s3://arn:aws:s3:::my-bucket/a/")->name_of("a/b"), "s3://arn:aws:s3:::my-bucket/a/b");
  EXPECT_FALSE(parse_remote_url("s3://arn:aws:s3:::my bucket/a").ok());
  struct row {
    const char* text;
    s3_place place;
    const char* address;
  };
  const s3_place elsewhere{.region = "eu-west-1", .endpoint = {}};
  const std::string own = "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/ap/a b";
  for (const auto& [text, place, address] :
       {row{own.c_str(), elsewhere, "https://ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com/a%20b"},
        row{"s3://arn:aws:s3:us-west-2:123456789012:accesspoint:ap/k", elsewhere,
            "https://ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com/k"},
        row{"s3://arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/ap/k", elsewhere,
            "https://ap-123456789012.s3-accesspoint.cn-north-1.amazonaws.com.cn/k"},
        row{own.c_str(),
            {.region = "x", .endpoint = {}, .fips = true, .dualstack = true},
            "https://ap-123456789012.s3-accesspoint-fips.dualstack.us-west-2.amazonaws.com/a%20b"},
        row{own.c_str(), {.region = "x", .endpoint = read_url("https://vpce.example")}, "https://ap-123456789012.vpce.example/a%20b"}}) {
    EXPECT_EQ(address_of(text, place).unredacted(), address);
    EXPECT_EQ(parse_s3_prefix(text)->bucket, read_remote(text).object.bucket);
  }
  const auto by_number = s3_address(read_remote(own).object, {.region = "x", .endpoint = read_url("http://127.0.0.1:1")});
  EXPECT_NE(by_number.error().message().find("ap-123456789012.ENDPOINT"), std::string_view::npos) << by_number.error().message();
  EXPECT_EQ(read_remote(own).object.region, "us-west-2");
  EXPECT_EQ(read_remote(own).shown(), own);
}

TEST(remote_url, other_arns_and_directory_buckets_are_refused_by_what_they_name) {
  for (const auto& [text, said] : std::vector<std::array<const char*, 2>>{
           {"s3://arn:aws:s3::123456789012:accesspoint/m.mrap/k", "version 4A"},
           {"s3://arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/x/k", "those of S3 buckets and access points"},
           {"s3://arn:aws:s3-outposts:us-west-2:123456789012:outpost/op/accesspoint/x/k", "those of S3 buckets and access points"},
           {"s3://arn:aws:s3:us-west-2:123456789012:bucket/x/k", "arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/KEY"},
           {"s3://arn:aws:s3:us-west-2:12:accesspoint/x/k", "is not valid for an access point"},
           {"s3://arn:aws:s3:evil.com/:123456789012:accesspoint/x/k", "accesspoint/NAME/KEY"},
           {"s3://arn:aws:s3:us-west-2:123456789012:accesspoint/x.y/k", "is not valid for an access point"}}) {
    const auto refused = parse_remote_url(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.error().message().find(said), std::string_view::npos) << refused.error().message();
  }
  const auto refused = s3_address(read_remote("s3://name--use1-az4--x-s3/k").object, {.region = "us-east-1", .endpoint = {}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("directory bucket"), std::string_view::npos);
}

TEST(remote_url, a_name_of_google_cloud_storage_is_that_of_a_bucket_and_a_key) {
  for (const char* const text : {"gs://my-bucket/a b?c", "gcs://my-bucket/a b?c"}) {
    const auto one = read_remote(text);
    EXPECT_TRUE(one.by_name && one.object.at_google);
    EXPECT_EQ(one.shown(), "gs://my-bucket/a b?c");
  }
  EXPECT_FALSE(read_remote("s3://my-bucket/k").object.at_google);
  refusal_of("gs://my-bucket");
  refusal_of("gs://arn:aws:s3:::my-bucket/k");
}

TEST(remote_url, keys_that_s3_does_not_have_are_refused) {
  refusal_of("s3://my-bucket");
  refusal_of("s3://my-bucket/");
  refusal_of("s3://my-bucket/\xff");
  refusal_of(std::string("s3://my-bucket/a\0b", 18));
  refusal_of("s3://my-bucket/" + std::string(most_key_bytes + 1, 'k'));
}

TEST(remote_url, a_bucket_cannot_name_another_host) {
  for (const char* const bucket : {"", "a.example.com/", "evil.com#", "evil.com?", "a@b", "a:80", "a b", "a\\b", "a%2fb", "[::1]",
                                   "\xc3\xa4\xc3\xa4", ".", "..", "arn:aws:s3:::b"}) {
    EXPECT_FALSE(check_bucket(bucket, true).ok()) << bucket;
    EXPECT_FALSE(check_bucket(bucket, false).ok()) << bucket;
  }
  for (const char* const bucket : {"ab", "-abc", "abc-", "a..b", "1.2.3.4", "_x_", "my_bucket"}) {
    EXPECT_FALSE(check_bucket(bucket, true).ok()) << bucket;
    EXPECT_TRUE(check_bucket(bucket, false).ok()) << bucket;
  }
  for (const char* const bucket : {"abc", "my.bucket", "0-1", "name--use1-az4--x-s3"})
    EXPECT_TRUE(check_bucket(bucket, true).ok()) << bucket;
  for (const char* const bucket : {"Old_Bucket", "UPPER"}) {
    EXPECT_FALSE(check_bucket(bucket, true).ok());
    EXPECT_TRUE(check_bucket(bucket, false).ok());
  }
  EXPECT_FALSE(check_bucket(std::string(64, 'a'), true).ok());
  EXPECT_FALSE(s3_address({"my-bucket", "k", "", false}, {.region = "x.evil.com/", .endpoint = {}}).ok());
  EXPECT_FALSE(s3_address({"my-bucket", "k", "", false}, {.region = "", .endpoint = {}}).ok());
}

TEST(remote_url, an_object_lies_at_amazon_or_at_the_given_endpoint) {
  EXPECT_EQ(address_of("s3://my.bucket/k", {.region = "us-east-1", .endpoint = {}}).unredacted(),
            "https://s3.us-east-1.amazonaws.com/my.bucket/k");
  EXPECT_EQ(address_of("s3://bucket/k", {.region = "cn-north-1", .endpoint = {}}).unredacted(),
            "https://bucket.s3.cn-north-1.amazonaws.com.cn/k");
  EXPECT_EQ(address_of("s3://bucket/a b", {.region = "", .endpoint = read_url("http://127.0.0.1:9000")}).unredacted(),
            "http://127.0.0.1:9000/bucket/a%20b");
  EXPECT_EQ(address_of("s3://Bucket_1/k", {.region = "x", .endpoint = read_url("https://h/base/?q")}).unredacted(),
            "https://h/base/Bucket_1/k");
}

TEST(remote_url, endpoints_of_amazon_and_styles_of_addressing_are_chosen) {
  using enum addressing;
  const auto own = read_url("http://minio.local:9000/base");
  struct row {
    s3_place place;
    const char* address;
  };
  for (const auto& [place, address] :
       {row{{"us-west-2", {}, automatic, true, false}, "https://my-bucket.s3-fips.us-west-2.amazonaws.com/k"},
        row{{"us-west-2", {}, automatic, false, true}, "https://my-bucket.s3.dualstack.us-west-2.amazonaws.com/k"},
        row{{"us-gov-west-1", {}, automatic, true, true}, "https://my-bucket.s3-fips.dualstack.us-gov-west-1.amazonaws.com/k"},
        row{{"cn-north-1", {}, automatic, false, true}, "https://my-bucket.s3.dualstack.cn-north-1.amazonaws.com.cn/k"},
        row{{"us-west-2", {}, path, false, false}, "https://s3.us-west-2.amazonaws.com/my-bucket/k"},
        row{{"RegionOne", own, automatic, false, false}, "http://minio.local:9000/base/my-bucket/k"},
        row{{"RegionOne", own, virtual_host, false, false}, "http://my-bucket.minio.local:9000/base/k"}})
    EXPECT_EQ(address_of("s3://my-bucket/k", place).unredacted(), address);
  EXPECT_EQ(s3_bucket_address("my-bucket", {"x", own, virtual_host, false, false})->unredacted(),
            "http://my-bucket.minio.local:9000/base/");
  for (const char* const endpoint : {"http://127.0.0.1:9000", "http://[::1]:9000"})
    EXPECT_FALSE(s3_address({"my-bucket", "k", "", false}, {"x", read_url(endpoint), virtual_host, false, false}).ok()) << endpoint;
  EXPECT_NE(
      s3_address({"my-bucket", "k", "", false}, {.region = "RegionOne", .endpoint = {}}).error().message().find("also set an endpoint"),
      std::string::npos);
}

TEST(remote_url, the_forms_of_amazon_name_an_object) {
  struct row {
    const char* text;
    const char* bucket;
    const char* region;
  };
  for (const auto& [text, bucket, region] :
       {row{"https://my.bucket.s3.eu-west-1.amazonaws.com/dir/a%20b", "my.bucket", "eu-west-1"},
        row{"https://s3.eu-west-1.amazonaws.com/my.bucket/dir/a b", "my.bucket", "eu-west-1"},
        row{"https://my.bucket.s3.amazonaws.com/dir/a%20b", "my.bucket", ""},
        row{"http://S3.amazonaws.com/my.bucket/dir/a%20b", "my.bucket", ""},
        row{"https://my.bucket.s3-eu-west-1.amazonaws.com/dir/a%20b", "my.bucket", "eu-west-1"},
        row{"https://s3-eu-west-1.amazonaws.com/my.bucket/dir/a%20b", "my.bucket", "eu-west-1"},
        row{"https://b.s3.dualstack.us-west-2.amazonaws.com/dir/a b", "b", "us-west-2"},
        row{"https://s3.dualstack.us-west-2.amazonaws.com/my.bucket/dir/a b", "my.bucket", "us-west-2"},
        row{"https://b.s3-fips.us-west-2.amazonaws.com/dir/a b", "b", "us-west-2"},
        row{"https://b.s3-fips.dualstack.us-west-2.amazonaws.com/dir/a b", "b", "us-west-2"},
        row{"https://b.s3.cn-north-1.amazonaws.com.cn/dir/a b", "b", "cn-north-1"},
        row{"https://ap-1.s3-accesspoint.us-west-2.amazonaws.com/dir/a b", "ap-1", "us-west-2"}}) {
    const auto one = read_remote(text);
    EXPECT_EQ(one.kind, url_kind::s3) << text;
    EXPECT_FALSE(one.by_name);
    EXPECT_EQ(one.object.bucket, bucket) << text;
    EXPECT_EQ(one.object.region, region) << text;
    EXPECT_EQ(one.object.key, "dir/a b") << text;
    EXPECT_TRUE(one.address.path.ends_with("/dir/a%20b")) << one.address.path;
  }
}

TEST(remote_url, the_key_of_an_amazon_url_is_encoded_once) {
  EXPECT_EQ(read_remote("https://bucket.s3.amazonaws.com/day=1/a+b%2Fc?versionId=7").address.unredacted_target(),
            "/day%3D1/a%2Bb/c?versionId=7");
  EXPECT_EQ(read_remote("https://s3.amazonaws.com/bucket//a/../b").address.unredacted_target(), "/bucket//a/../b");
  EXPECT_EQ(read_remote("https://bucket.s3.amazonaws.com/100%").address.unredacted_target(), "/100%25");
  refusal_of("https://bucket.s3.amazonaws.com/%ff");
}

TEST(remote_url, other_hosts_of_amazon_are_plain_http) {
  for (const char* const text :
       {"https://bucket.s3.amazonaws.com/", "https://s3.amazonaws.com/bucket", "https://s3.amazonaws.com/bucket/",
        "https://amazonaws.com/b/k", "https://bucket.s3-website-us-east-1.amazonaws.com/k", "https://ec2.us-east-1.amazonaws.com/b/k",
        "https://bucket.s3.amazonaws.com.evil.com/k", "https://s3.evil.com/b/k?X-Amz-Algorithm=a&X-Amz-Signature=b"})
    EXPECT_EQ(read_remote(text).kind, url_kind::http) << text;
}

TEST(remote_url, a_presigned_url_is_left_as_it_is_and_shown_without_its_signature) {
  constexpr std::string_view text =
      "https://bucket.s3.us-west-2.amazonaws.com/a=%62?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=hidden";
  const auto one = read_remote(text);
  EXPECT_EQ(one.kind, url_kind::s3_presigned);
  EXPECT_EQ(one.address.unredacted(), text);
  EXPECT_EQ(one.shown(), "https://bucket.s3.us-west-2.amazonaws.com/a=%62");
  EXPECT_EQ(one.object.key, "a=b");
  EXPECT_TRUE(is_presigned(one.address));
  EXPECT_TRUE(is_presigned(read_url("http://127.0.0.1:9/b/k?X-Amz-Algorithm=a&X-Amz-Signature=b")));
  EXPECT_EQ(read_remote("https://bucket.s3.amazonaws.com/k?X-Amz-Signature=b").kind, url_kind::s3);
}

TEST(remote_url, webhdfs_names_its_port) {
  EXPECT_EQ(read_remote("http://node:9870/webhdfs/v1/data/x?user.name=me").kind, url_kind::webhdfs);
  EXPECT_EQ(read_remote("https://[::1]:80/WebHDFS/v1/x").kind, url_kind::webhdfs);
  EXPECT_EQ(query_value(read_url("http://h:1/webhdfs/v1/x?op=OPEN&user.name=me").query.unredacted(), "user.name"), "me");
  for (const char* const text :
       {"http://node/webhdfs/v1/x", "http://node:9870/webhdfs/v1/", "http://node:9870/webhdfs/v2/x", "http://[::1]/webhdfs/v1/x"})
    EXPECT_EQ(read_remote(text).kind, url_kind::http) << text;
}

TEST(remote_url, the_first_kind_that_fits_is_taken) {
  using enum url_kind;
  const auto object = read_remote("https://bucket.s3.amazonaws.com/k");
  EXPECT_EQ(first_fitting(object, std::array{webhdfs, http, s3}), http);
  EXPECT_EQ(first_fitting(object, std::array{s3_presigned, s3_public}), s3_public);
  EXPECT_EQ(first_fitting(object, std::array{s3_presigned, webhdfs}), std::nullopt);
  EXPECT_FALSE(fits(read_remote("s3://bucket/k"), http));
}

TEST(remote_url, an_origin_is_scheme_host_and_port) {
  const auto one = read_url("https://h/a");
  EXPECT_TRUE(one.same_origin(read_url("https://H:443/b?c")));
  for (const char* const text : {"http://h/a", "https://h:444/a", "https://h2/a"}) EXPECT_FALSE(one.same_origin(read_url(text))) << text;
}

TEST(remote_url, a_query_is_read_by_the_names_of_its_parameters) {
  EXPECT_EQ(query_value("a=1&b&c=&a=2", "a"), "1");
  EXPECT_EQ(query_value("a=1&b&c=&a=2", "b"), "");
  EXPECT_EQ(query_value("a=1&b&c=&a=2", "c"), "");
  EXPECT_EQ(query_value("ab=1&&", "a"), std::nullopt);
  EXPECT_EQ(query_value("", "a"), std::nullopt);
}

TEST(remote_url, decoding_undoes_encoding) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(percent_decoded(percent_encoded(all, false)), all);
  EXPECT_EQ(percent_decoded(percent_encoded(all, true)), all);
  EXPECT_EQ(percent_decoded("%4"), std::nullopt);
  EXPECT_EQ(percent_encoded("a/b", false), "a%2Fb");
}

}  // namespace
}  // namespace penstock::source::remote
