// What S3 and STS answer in XML: errors, and lists of objects. Bounded in size before it is read, and what is taken from it is bounded and
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
// A page of 1,000 keys of 1,024 bytes, each byte as three characters, with what is said of each.
inline constexpr std::size_t most_list_bytes = std::size_t{8} << 20;
inline constexpr std::size_t most_listed_objects = 10000;

// What is not there is empty.
struct s3_error {
  std::string code;     // letters, digits and dots only
  std::string message;  // printable, 500 bytes at most
  std::string request_id;
  std::string region;    // of the bucket, where the request went to another
  std::string endpoint;  // the host that the bucket is at, likewise; not to be believed before it is looked at
};

// Of whatever a server answered with. Bytes behind most_error_bytes, and what is no XML, are not looked at.
s3_error parse_s3_error(std::string_view body);
// "AccessDenied: Access Denied (request 4442587FB7D0A2F9)", with the number of the answer where there is no code.
std::string shown_error(int status_code, const s3_error& error);
// Codes after which the same request may succeed a little later.
[[nodiscard]] bool may_succeed_later(std::string_view code);

struct listed_object {
  std::string key;
  std::uint64_t size_bytes = 0;
};
struct object_list {
  std::vector<listed_object> objects;
  std::vector<std::string> folders;  // beginnings of other keys, which end with "/": of a list of one level
  std::string continuation_token;    // of the next page; empty: that was the last
};

// The query that asks for a page of ListObjectsV2, with keys percent-encoded, since XML cannot have all that they may have in them.
// one_level: keys with a "/" behind the prefix are told as folders.
std::string list_query(std::string_view prefix, std::string_view continuation_token, bool one_level = false);
// Errors: io (no answer to that, too long, too many objects, a further page without a token).
result<object_list> parse_object_list(std::string_view body);

}  // namespace penstock::source::remote
