// Parsers for XML responses of S3 and STS: errors and lists of objects. Input is bounded before parsing; results are bounded and printable.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::source::remote {

inline constexpr std::size_t most_error_bytes = std::size_t{64} << 10;
// Fits a page of 1,000 keys of 1,024 bytes, each byte encoded as three characters, with their other fields.
inline constexpr std::size_t most_list_bytes = std::size_t{8} << 20;
inline constexpr std::size_t most_listed_objects = 10000;

// Missing fields are empty.
struct s3_error {
  std::string code;     // letters, digits and dots only
  std::string message;  // printable, 500 bytes at most
  std::string request_id;
  std::string region;    // of the bucket, if the request went to another
  std::string endpoint;  // host of the bucket, if the request went to another; validate before use
};

// Parses any response body. Ignores bytes beyond most_error_bytes and anything that is not XML.
s3_error parse_s3_error(std::string_view body);
// Formats "AccessDenied: Access Denied (request 4442587FB7D0A2F9)", or the status code if there is no error code.
std::string shown_error(int status_code, const s3_error& error);
// Returns true for codes after which the same request may succeed later.
[[nodiscard]] bool may_succeed_later(std::string_view code);

struct listed_object {
  std::string key;
  std::uint64_t size_bytes = 0;
};
struct object_list {
  std::vector<listed_object> objects;
  std::vector<std::string> folders;  // common prefixes of other keys that end with "/", if one level was listed
  std::string continuation_token;    // of the next page; empty: last page
};

// Returns the query for a page of ListObjectsV2. Asks for percent-encoded keys, since XML cannot represent all keys. one_level: keys with a
// "/" after the prefix are grouped into folders.
std::string list_query(std::string_view prefix, std::string_view continuation_token, bool one_level = false);
// Error: io (not such a response, too long, too many objects, a further page without a token).
result<object_list> parse_object_list(std::string_view body);

}  // namespace penstock::source::remote
