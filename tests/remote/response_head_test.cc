// Response heads: their meaning, and what is rejected.
#include "remote/net/response_head.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
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
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n").find("gzip"), std::string::npos);
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n").find("gzip"), std::string::npos);
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nContent-Range: bytes 0-1/2\r\nContent-Range: bytes 0-1/3\r\n\r\n"), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nETag: \"a\rX-Other: b\"\r\n\r\n"), "");
  EXPECT_NE(refused(std::string("HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", 27)), "");
  EXPECT_NE(refused("HTTP/1.1 200 OK\r\nA: " + std::string(70'000, 'x')).find("64 KiB"), std::string::npos);
}

TEST(response_head, is_read_as_leniently_as_libcurl_reads_it) {
  struct kind {
    const char* name;
    std::string lines;
  };
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "A: b\r\n";
  for (const auto& [name, lines] : std::initializer_list<kind>{
           {"blanks around the colon", "Content-Length : 3\r\nETag :  \"e\" \r\n"},
           {"lines that end with LF", "Content-Length: 3\nETag: \"e\"\n"},
           {"folded lines", "Content-Length:\r\n 3\r\nX: a\r\n\tb\r\n  c\r\nETag: \"e\"\r\n"},
           {"a folded first line", " folded: x\r\nContent-Length: 3\r\nETag: \"e\"\r\n"},
           {"lines that come twice", "ETag: \"e\"\r\nETag: \"f\"\r\nDate: 1\r\nDate: 2\r\nContent-Length: 3\r\nContent-Length: 3\r\n"},
           {"many lines", many + "Content-Length: 3\r\nETag: \"e\"\r\n"},
           {"control characters", "X: \x07\x1b\r\nETag: \"\x07\"\r\nContent-Length: 3\r\nETag: \"e\"\r\n"},
           {"no transfer encoding", "Transfer-Encoding: identity\r\nContent-Length: 3\r\nETag: \"e\"\r\n"},
           {"a line without a name", ": x\r\nContent-Length: 3\r\nETag: \"e\"\r\n"}}) {
    const std::string text = "HTTP/1.1 200 OK\r\n" + lines + "\r\nabc";
    for (std::size_t cut = 0; cut < text.size() - 3; ++cut) {
      response_head early;
      EXPECT_EQ(parse_head(std::string_view(text).substr(0, cut), early).value_or(9), 0U) << name << " cut at " << cut;
    }
    response_head made;
    const auto length = parse_head(text, made);
    ASSERT_TRUE(length.ok()) << name << ": " << length.error().message();
    EXPECT_EQ(*length, text.size() - 3) << name;
    EXPECT_EQ(made.length, 3U) << name;
    EXPECT_EQ(made.etag, "\"e\"") << name;
  }
  EXPECT_TRUE(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity, Chunked\r\n\r\n").chunked);
  const auto both = parsed("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_TRUE(both.chunked && both.closes && !both.length) << "chunks count, and nothing behind them";
  EXPECT_TRUE(parsed("HTTP/1.1 200 OK\r\nConnection: Upgrade, Close\r\n\r\n").closes);
}

TEST(content_range, is_what_it_says_or_nothing) {
  const auto range = parse_content_range("bytes 5-14/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->last, 14U);
  EXPECT_EQ(range->total, 100U);
  EXPECT_FALSE(parse_content_range("bytes 5-14/*")->total);
  for (const auto* same : {"Bytes 5-14/100", "BYTES  5-14/100", "bytes=5-14/100", "bytes: 5-14/100", "bytes\t5-14/100", "5-14/100",
                           "bytes 5 - 14 / 100", "bytes 5-14 / *"})
    EXPECT_EQ(parse_content_range(same)->last, 14U) << same;
  for (const auto* wrong : {"", "bytes", "bytes 5-14", "bytes 14-5/100", "bytes 5-100/100", "bytes -5/100", "lines 5-14/100",
                            "bytes 5-14/x", "bytes 99999999999999999999-5/9", "bytes */100"}) {
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  }
  EXPECT_EQ(parse_unsatisfied_range("bytes */100"), 100U);
  for (const auto* same : {"Bytes */100", "bytes * / 100", "*/100", "bytes: */100"}) EXPECT_EQ(parse_unsatisfied_range(same), 100U) << same;
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

TEST(chunked_body, may_have_other_line_ends_and_blanks) {
  const std::string text = "005\nhello\n 1 ; name=value\r\n,\n00000000000000000A\r\n 0123\r\n567\r\n0\n\n";
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
  EXPECT_NE(taken(trailers, trailers.size(), ended).find("trailer fields"), std::string::npos);
}

}  // namespace
}  // namespace penstock::source::remote
