// What is taken from S3's XML responses, and what is not trusted.
#include "remote/net/s3_error.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "remote/net/xml_scanner.hpp"

namespace penstock::source::remote {
namespace {

// "<a <b 'text' >b >a", and "!" where it broke off.
std::string events_of(std::string_view text) {
  xml_scanner xml(text);
  std::string told;
  for (;;) {
    switch (xml.next()) {
      case xml_event::begin:
        told += fmt::format("<{} ", xml.name());
        break;
      case xml_event::end:
        told += xml.text().empty() ? fmt::format(">{} ", xml.name()) : fmt::format("'{}' >{} ", xml.text(), xml.name());
        break;
      case xml_event::done:
        return told;
      case xml_event::broken:
        return told + "!";
    }
  }
}

std::string refused_list(std::string_view body) {
  const auto made = parse_object_list(body);
  EXPECT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), errc::io);
  return std::string(made.error().message());
}

TEST(xml_scanner, elements_and_their_text_are_told) {
  EXPECT_EQ(events_of("<a/>"), "<a >a ");
  EXPECT_EQ(events_of("\xef\xbb\xbf<?xml version='1.0'?>\n<a x='>' y=\"'>\"><!-- <z> --><b> 1 </b><c/>2</a >\n"),
            "<a <b ' 1 ' >b <c >c >a ");
  EXPECT_EQ(events_of("<s3:Error xmlns:s3='u'><s3:Code>x</s3:Code></s3:Error>"), "<Error <Code 'x' >Code >Error ");
  EXPECT_EQ(events_of("<a>&lt;&amp;&gt;&quot;&apos;&#65;&#x20ac;&#x1F600;</a>"), "<a '<&>\"'A\xe2\x82\xac\xf0\x9f\x98\x80' >a ");
  EXPECT_EQ(events_of("<a><b></b><b>x</b></a>"), "<a <b >b <b 'x' >b >a ");
}

TEST(xml_scanner, what_is_no_xml_breaks_off) {
  for (const char* const text : {"",
                                 " ",
                                 "text",
                                 "<",
                                 "<a",
                                 "<a>",
                                 "<a></b>",
                                 "</a>",
                                 "<a/><b/>",
                                 "<a/>text",
                                 "<a>&b;</a>",
                                 "<a>&#0;</a>",
                                 "<a>&#xd800;</a>",
                                 "<a>&#x110000;</a>",
                                 "<a>&#;</a>",
                                 "<a>&",
                                 "<a x='></a>",
                                 "<!DOCTYPE a><a/>",
                                 "<a><![CDATA[x]]></a>",
                                 "<a><!-- </a>",
                                 "<?xml",
                                 "<>x</>",
                                 "< a></ a>"})
    EXPECT_TRUE(events_of(text).ends_with('!')) << text << " " << events_of(text);
}

TEST(xml_scanner, nesting_has_an_end) {
  const auto nested = [](std::size_t depth) {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += "<a>";
    for (std::size_t i = 0; i < depth; ++i) text += "</a>";
    return text;
  };
  EXPECT_FALSE(events_of(nested(xml_scanner::most_depth)).ends_with('!'));
  EXPECT_TRUE(events_of(nested(xml_scanner::most_depth + 1)).ends_with('!'));
}

TEST(s3_error, parts_of_an_error_are_told_apart) {
  const auto error = parse_s3_error(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>PermanentRedirect</Code><Message>The bucket is in this region: "
      "eu-west-1</Message><Endpoint>bucket.s3.eu-west-1.amazonaws.com</Endpoint><Region>eu-west-1</Region><Bucket>b</Bucket>"
      "<RequestId>4442587FB7D0A2F9</RequestId><HostId>x</HostId></Error>");
  EXPECT_EQ(error.code, "PermanentRedirect");
  EXPECT_EQ(error.message, "The bucket is in this region: eu-west-1");
  EXPECT_EQ(error.region, "eu-west-1");
  EXPECT_EQ(error.endpoint, "bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(shown_error(301, error), "PermanentRedirect: The bucket is in this region: eu-west-1 (request 4442587FB7D0A2F9)");
  EXPECT_EQ(shown_error(503, parse_s3_error("<html>busy")), "HTTP 503");
}

TEST(s3_error, that_of_sts_is_one_too) {
  const auto error = parse_s3_error(
      "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>ExpiredTokenException</Code>"
      "<Message>Token expired</Message></Error><RequestId>c6104cbe-af31-11e0</RequestId></ErrorResponse>");
  EXPECT_EQ(shown_error(400, error), "ExpiredTokenException: Token expired (request c6104cbe-af31-11e0)");
}

TEST(s3_error, what_a_hostile_server_says_is_cut_and_printable) {
  const auto error = parse_s3_error("<Error><Code>a&#10;b</Code><Message>\x1b[31m&#7;" + std::string(10000, 'x') +
                                    "</Message><Region>evil.com/</Region><Endpoint>evil.com/?</Endpoint><RequestId>" +
                                    std::string(101, 'r') + "</RequestId></Error>");
  EXPECT_EQ(error.code, "");
  EXPECT_EQ(error.message.size(), 500U);
  EXPECT_TRUE(error.message.starts_with("?[31m?xxx"));
  EXPECT_EQ(error.region, "");
  EXPECT_EQ(error.endpoint, "");
  EXPECT_EQ(error.request_id, "");
  EXPECT_EQ(parse_s3_error("<Error>" + std::string(most_error_bytes, ' ') + "<Code>Late</Code></Error>").code, "");
  EXPECT_EQ(parse_s3_error("<Error><Code>First</Code><Code>Second</Code>").code, "First");
}

TEST(s3_error, some_are_worth_another_try) {
  EXPECT_TRUE(may_succeed_later("SlowDown"));
  EXPECT_TRUE(may_succeed_later("InternalError"));
  for (const char* const code : {"AccessDenied", "NoSuchKey", "PreconditionFailed", ""}) EXPECT_FALSE(may_succeed_later(code)) << code;
}

TEST(object_list, keys_and_sizes_are_read_page_by_page) {
  const auto page = parse_object_list(
      "<ListBucketResult "
      "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>1ueGcx&amp;==</NextContinuationToken><EncodingType>url</EncodingType>"
      "<Contents><Key>a+b%2B%C3%A4</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>18446744073709551615</Size>"
      "<Owner><ID>x</ID></Owner></Contents><Contents><Size>0</Size><Key>c</Key></Contents>"
      "<Prefix>x</Prefix><CommonPrefixes><Prefix>d+e/</Prefix></CommonPrefixes></ListBucketResult>");
  ASSERT_TRUE(page.ok()) << page.error().message();
  ASSERT_EQ(page->objects.size(), 2U);
  EXPECT_EQ(page->objects[0].key, "a b+\xc3\xa4");
  EXPECT_EQ(page->objects[0].size_bytes, 18446744073709551615U);
  EXPECT_EQ(page->objects[1].key, "c");
  EXPECT_EQ(page->continuation_token, "1ueGcx&==");
  EXPECT_EQ(page->folders, std::vector<std::string>{"d e/"});
}

TEST(object_list, the_last_page_names_no_next_one) {
  const auto page = parse_object_list(
      "<ListBucketResult><IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken><Contents><Key>a+b</Key><Size>1</"
      "Size>"
      "</Contents></ListBucketResult>");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->objects.at(0).key, "a+b");
  EXPECT_EQ(page->continuation_token, "");
  EXPECT_TRUE(parse_object_list("<ListBucketResult/>").ok());
}

TEST(object_list, what_is_not_one_is_refused) {
  const auto with = [](std::string_view inner) { return fmt::format("<ListBucketResult>{}</ListBucketResult>", inner); };
  EXPECT_EQ(refused_list("<Error><Code>AccessDenied</Code></Error>"), "the server's object list is invalid: it is not a list of objects");
  refused_list("");
  refused_list(with("<Contents><Key>a</Key>"));
  refused_list(with("<Contents><Key>a</Key></Contents>"));
  refused_list(with("<Contents><Size>1</Size></Contents>"));
  for (const char* const size : {"", "-1", "1x", "18446744073709551616"})
    refused_list(with(fmt::format("<Contents><Key>a</Key><Size>{}</Size></Contents>", size)));
  refused_list(with("<EncodingType>url</EncodingType><Contents><Key>%4</Key><Size>1</Size></Contents>"));
  refused_list(with("<EncodingType>url</EncodingType><Contents><Key>%ff</Key><Size>1</Size></Contents>"));
  refused_list(with("<CommonPrefixes></CommonPrefixes>"));
  refused_list(with("<CommonPrefixes><Prefix>no-slash</Prefix></CommonPrefixes>"));
  refused_list(with("<Contents><Key></Key><Size>1</Size></Contents>"));
  refused_list(with("<Other><Key>a</Key><Size>1</Size></Other><Contents></Contents>"));
  refused_list(with("<IsTruncated>true</IsTruncated>"));
  refused_list(with(std::string(most_list_bytes, ' ')));
}

TEST(object_list, a_page_has_a_most_number_of_objects) {
  std::string inner;
  for (std::size_t i = 0; i <= most_listed_objects; ++i) inner += "<Contents><Key>a</Key><Size>1</Size></Contents>";
  EXPECT_NE(refused_list(fmt::format("<ListBucketResult>{}</ListBucketResult>", inner)).find("more than 10000"), std::string::npos);
}

TEST(object_list, the_query_is_encoded) {
  EXPECT_EQ(list_query("", ""), "list-type=2&encoding-type=url");
  EXPECT_EQ(list_query("a b/", "x+="), "list-type=2&encoding-type=url&prefix=a%20b%2F&continuation-token=x%2B%3D");
}

}  // namespace
}  // namespace penstock::source::remote
