// The head of an HTTP/1 response: the fields needed to read ranges. Parsing takes bounded time and memory for any input.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::source::remote {

// "bytes 0-4095/65536"
struct content_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;              // inclusive
  std::optional<std::uint64_t> total;  // nullopt: "*"
};
std::optional<content_range> parse_content_range(std::string_view text) noexcept;
// Returns the total from "bytes */65536", which a response contains if a range starts past the end.
std::optional<std::uint64_t> parse_unsatisfied_range(std::string_view text) noexcept;

// Parses the seconds in a Retry-After header. Returns 0 for a date or a malformed value, so that the caller chooses the pause.
std::chrono::milliseconds pause_of(std::string_view text) noexcept;

struct response_head {
  static constexpr std::size_t most_bytes = std::size_t{64} << 10;

  int status = 0;
  std::optional<std::uint64_t> length;  // the body's length
  bool chunked = false;
  bool closes = false;  // the connection cannot be reused
  std::string range;    // this and the fields below contain values as received; empty if absent
  std::string etag;
  std::string last_modified;
  std::string encoding;
  std::string location;
  std::string retry_after;
  std::string date;
  std::string bucket_region;  // x-amz-bucket-region
  std::string upload_mark;    // x-amz-meta-penstock-upload
};

// Parses the head at the start of the received bytes, as leniently as libcurl: lines may end with LF alone, be folded, be repeated (the
// first counts) and have blanks around their names. Returns the length of the head, including the empty line; 0 if it is incomplete. Error:
// io; the message says what is wrong.
result<std::size_t> parse_head(std::string_view come, response_head& into);

// Decodes "Transfer-Encoding: chunked" for a body that arrives in pieces.
class chunked_body {
 public:
  // The received bytes start with `skip` bytes of framing, followed by `body` bytes of the body. If both are 0, keep the input and call
  // again with more. Error: io.
  struct step {
    std::size_t skip = 0;
    std::size_t body = 0;
  };
  result<step> next(std::string_view come);
  // Reports that the caller has taken that many bytes of the body.
  void took(std::size_t bytes) noexcept { left_ -= bytes; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }

 private:
  static constexpr std::size_t most_line = 1024;
  static constexpr unsigned most_trailers = 64;
  std::uint64_t left_ = 0;  // bytes left in this chunk
  bool begun_ = false;
  bool last_ = false;
  bool ended_ = false;
  unsigned trailers_ = 0;
};

}  // namespace penstock::source::remote
