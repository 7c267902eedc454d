// Heads of answers: what they say, and what they may not be.
#include "source/remote/response_head.hpp"

#include <gtest/gtest.h>

#include <string>

namespace penstock::source::remote {
namespace {

response_head parsed(std::string_view text) {
  response_head made;
  const auto length = parse_head(text, made);
  EXPECT_TRUE(length.ok()) << length.error().message();
  EXPECT_EQ(length.value_or(0), text.find("\r\n\r\n") + 4);
  return made;
}

std::string refused(std::string_view text) {
  response_head made;
  return std::string(parse_head(text, made).error().message());
}

TEST(response_head, says_what_a_reader_of_ranges_needs) {
  const auto head = parsed(
      "HTTP/1.1 206 Partial Content\r\nServer: x\r\nETag: \"a:b\"\r\nLAST-MODIFIED:  Wed, 21 Oct 2015 07:28:00 GMT \r\nContent-Length: "
      "10\r\n"
      "Content-Range: bytes 5-14/100\r\nConnection: close\r\n\r\n0123456789");
  EXPECT_EQ(head.status, 206);
  EXPECT_EQ(head.length, 10U);
  EXPECT_EQ(head.etag, "\"a:b\"");
  EXPECT_EQ(head.last_modified, "Wed, 21 Oct 2015 07:28:00 GMT");
  EXPECT_EQ(head.range, "bytes 5-14/100");
  EXPECT_TRUE(head.closes);
  EXPECT_FALSE(head.chunked);
}

TEST(response_head, of_http_1_0_ends_its_connection_unless_it_says_otherwise) {
  EXPECT_TRUE(parsed("HTTP/1.0 200 OK\r\n\r\n").closes);
  EXPECT_FALSE(parsed("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n\r\n").closes);
  EXPECT_FALSE(parsed("HTTP/1.1 200\r\n\r\n").closes);
}

TEST(response_head, that_has_not_all_come_is_waited_for) {
  const std::string whole = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    response_head made;
    const auto length = parse_head(std::string_view(whole).substr(0, bytes), made);
    EXPECT_TRUE(length.ok() && *length == 0) << bytes;
  }
}

TEST(response_head, that_is_none_is_refused_in_words) {
  EXPECT_NE(refused("SSH-2.0\r\n").find("SSH-2.0"), std::string::npos);
  EXPECT_NE(refused("HTTP/2 200 OK\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 2000 OK\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 abc OK\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nno header\r\n\r\n").find("no header"), std::string::npos);
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\n folded: x\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n").find("gzip"), std::string::npos);
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nETag: a\r\nETag: b\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nETag: \"a\rX-Other: b\"\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nA: " + std::string(70'000, 'x')).find("64 KiB"), std::string::npos);
  std::string many = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 300; ++i) many += "A: b\r\n";
  EXPECT_NE(refused(many + "\r\n").find("256 headers"), std::string::npos);
}

TEST(content_range, is_what_it_says_or_nothing) {
  const auto range = parse_content_range("bytes 5-14/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->last, 14U);
  EXPECT_EQ(range->total, 100U);
  EXPECT_FALSE(parse_content_range("bytes 5-14/*")->total);
  for (const auto* wrong : {"", "bytes", "bytes 5-14", "bytes 14-5/100", "bytes 5-100/100", "bytes -5/100", "lines 5-14/100",
                            "bytes 5-14/x", "bytes 99999999999999999999-5/9", "bytes */100"}) {
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  }
  EXPECT_EQ(parse_unsatisfied_range("bytes */100"), 100U);
  EXPECT_FALSE(parse_unsatisfied_range("bytes 5-14/100"));
}

// What comes of a body whose text comes in steps of so many bytes.
std::string taken(std::string_view text, std::size_t at_once, bool& ended) {
  chunked_body chunks;
  std::string come;
  std::string body;
  for (std::size_t at = 0; at < text.size() && !chunks.ended(); at += at_once) {
    come += text.substr(at, at_once);
    for (;;) {
      const auto next = chunks.next(come);
      if (!next) {
        ended = false;
        return std::string(next.error().message());
      }
      come.erase(0, next->skip);
      if (next->body == 0) break;
      body += come.substr(0, next->body);
      chunks.took(next->body);
      come.erase(0, next->body);
    }
  }
  ended = chunks.ended();
  return body;
}

TEST(chunked_body, is_its_chunks_however_they_come) {
  const std::string text = "5\r\nhello\r\n1;name=value\r\n,\r\nA\r\n 0123\r\n567\r\n0\r\nTrailer: x\r\n\r\n";
  for (std::size_t at_once = 1; at_once <= text.size(); ++at_once) {
    bool ended = false;
    EXPECT_EQ(taken(text, at_once, ended), "hello, 0123\r\n567") << at_once;
    EXPECT_TRUE(ended) << at_once;
  }
}

TEST(chunked_body, that_is_none_is_an_error) {
  bool ended = true;
  for (const std::string& wrong : {std::string("x\r\n"), std::string("-1\r\n"), std::string("5\r\nhelloworld"), std::string("\r\n"),
                                   std::string(2000, '1'), std::string("11111111111111111\r\n")}) {
    EXPECT_NE(taken(wrong, wrong.size(), ended), "") << wrong;
    EXPECT_FALSE(ended) << wrong;
  }
  std::string trailers = "0\r\n";
  for (int i = 0; i < 100; ++i) trailers += "A: b\r\n";
  EXPECT_NE(taken(trailers, trailers.size(), ended).find("behind its body"), std::string::npos);
}

}  // namespace
}  // namespace penstock::source::remote
