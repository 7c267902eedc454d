// Where responses may redirect a reader.
#include "remote/net/redirect.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace penstock::source::remote {
namespace {

std::string sent_to(const std::string& location, bool tls = false) {
  const auto from = parse_http_url(tls ? "https://host/a/b?c" : "http://host:8080/a/b?c");
  const auto to = redirect_target(*from, location);
  return to.ok() ? to->unredacted() : "";
}

TEST(redirects, lead_to_other_servers_and_paths_and_are_resolved_as_references) {
  EXPECT_EQ(sent_to("http://other:81/x?y=z"), "http://other:81/x?y=z");
  EXPECT_EQ(sent_to("/x"), "http://host:8080/x");
  EXPECT_EQ(sent_to("//other/x"), "http://other/x");
  EXPECT_EQ(sent_to("https://other/x", true), "https://other/x");
  for (const auto& [reference, whole] : std::initializer_list<std::pair<std::string, std::string>>{{"x", "/a/x"},
                                                                                                   {"./x", "/a/x"},
                                                                                                   {"../x", "/x"},
                                                                                                   {"../../x", "/x"},
                                                                                                   {"?d", "/a/b?d"},
                                                                                                   {"x/../y?z=/../w", "/a/y?z=/../w"},
                                                                                                   {"x/.", "/a/x/"},
                                                                                                   {"..", "/"},
                                                                                                   {"#part", "/a/b?c"},
                                                                                                   {"/x/../y", "/x/../y"}})
    EXPECT_EQ(sent_to(reference), "http://host:8080" + whole) << reference;
  for (const auto* host : {"features.example.com", "feb-data.example.org", "fe80.example.net", "10.0.0.1", "[2001:db8::1]"})
    EXPECT_NE(sent_to(std::string("http://") + host + "/x"), "") << host;
}

TEST(redirects, do_not_lead_to_plain_http_from_https_nor_to_what_is_no_url) {
  EXPECT_EQ(sent_to("http://other/x", true), "");
  for (const auto* wrong : {"", "ftp://other/x", "http://", "http://user:word@other/x", "http://other:99999/x", "javascript:x"})
    EXPECT_EQ(sent_to(wrong), "") << wrong;
}

TEST(redirects, do_not_lead_to_where_machines_keep_credentials_however_that_is_written) {
  for (const auto* host : {"169.254.169.254",
                           "169.254.170.2",
                           "169.254.170.23",
                           "2852039166",
                           "0xa9fea9fe",
                           "0251.0376.0251.0376",
                           "0xa9.254.43518",
                           "100.100.100.200",
                           "1684301000",
                           "0x646464c8",
                           "168.63.129.16",
                           "192.0.0.192",
                           "[fe80::1]",
                           "[fd00:ec2::254]",
                           "[fd00:ec2::23]",
                           "[fd20:ce::254]",
                           "[::ffff:169.254.169.254]",
                           "[::ffff:a9fe:a9fe]",
                           "[::ffff:100.100.100.200]",
                           "[::100.100.100.200]",
                           "[64:ff9b::6464:64c8]",
                           "[2002:6464:64c8::1]",
                           "metadata.google.internal",
                           "metadata.goog",
                           "metadata.azure.internal",
                           "metadata.tencentyun.com",
                           "instance-data.ec2.internal",
                           "METADATA"})
    EXPECT_EQ(sent_to(std::string("http://") + host + "/latest"), "") << host;
}

}  // namespace
}  // namespace penstock::source::remote
