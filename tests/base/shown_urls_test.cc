// URLs in messages: credentials are removed.
#include "base/shown_urls.hpp"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

TEST(shown_urls, are_without_what_gives_access) {
  const std::pair<const char*, const char*> texts[] = {
      {"https://host/path?X-Amz-Signature=secret", "https://host/path"},
      {"https://host/path?sig=secret: no such file", "https://host/path: no such file"},
      {"open 'https://host/path?token=secret'", "open 'https://host/path'"},
      {"{\"file\": \"https://host/path?token=secret\"}", "{\"file\": \"https://host/path\"}"},
      {"copy http://a/b?secret to http://c/d?secret, twice", "copy http://a/b to http://c/d, twice"},
      {"http://user:secret@host:80/path", "http://...@host:80/path"},
      {"http://secret@host", "http://...@host"},
      {"http://user:sec/ret@host/path", "http://...@host/path"},
      {"https://host/path#secret", "https://host/path"},
      {"s3://secret:secret@bucket/key", "s3://...@bucket/key"},
      {"s3://bucket/key?X-Amz-Signature=secret", "s3://bucket/key"},
      {"az://container/blob?sv=1&sig=secret", "az://container/blob"},
      {"(https://host?secret)", "(https://host)"},
  };
  for (const auto& [text, shown] : texts) EXPECT_EQ(without_url_secrets(text), shown);
}

TEST(shown_urls, leave_other_text_as_it_is) {
  for (const std::string text : {"", "a file? yes", "://", "https://host/path@v1/file", "https://[::1]:80/a", "s3://bucket/what?.txt",
                                 "tcp://10.0.0.1:80", "http://host:80", "/a/b://c", "user@host:/path"})
    EXPECT_EQ(without_url_secrets(text), text);
}

}  // namespace
}  // namespace penstock
