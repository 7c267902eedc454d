// Parsers for XML responses from S3 and STS: errors and object lists. The input size is checked before parsing; results are bounded and
// printable. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::source::remote {

inline constexpr std::size_t most_error_bytes = std::size_t{64} << 10;
// Large enough for a page with 1,000 keys of 1,024 bytes, each byte encoded as three characters, and their other fields.
inline constexpr std::size_t most_list_bytes = std::size_t{8} << 20;
inline constexpr std::size_t most_listed_objects = 10000;

// Missing fields are empty.
struct s3_error {
  std::string code;     // letters, digits and dots only
  std::string message;  // printable, 500 bytes at most
  std::string request_id;
  std::string region;    // the bucket's region, if the request was sent to another one
  std::string endpoint;  // the bucket's host, if the request was sent to another one; validate before use
};

// Parses any response body. Ignores bytes beyond most_error_bytes and anything that is not XML.
s3_error parse_s3_error(std::string_view body);
// Formats "AccessDenied: Access Denied (request 4442587FB7D0A2F9)", or the status code if there is no error code.
std::string shown_error(int status_code, const s3_error& error);
// Returns true for error codes after which the same request may succeed later.
[[nodiscard]] bool may_succeed_later(std::string_view code);

struct listed_object {
  std::string key;
  std::uint64_t size_bytes = 0;
};
struct object_list {
  std::vector<listed_object> objects;
  std::vector<std::string> folders;  // common prefixes, ending with "/", of all other keys, if one level was listed
  std::string continuation_token;    // for the next page; empty: last page
};

// Returns the query for a page of ListObjectsV2. Requests percent-encoded keys, because XML cannot represent all keys. one_level: keys with
// a "/" after the prefix are grouped into folders.
std::string list_query(std::string_view prefix, std::string_view continuation_token, bool one_level = false);
// Error: io (not an object list, too large, too many objects, or a next page without a token).
result<object_list> parse_object_list(std::string_view body);

}  // namespace penstock::source::remote
