// The head of an HTTP/1 answer: what of it a reader of ranges needs. Whatever a server sends, reading it takes bounded time and memory.
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
  std::uint64_t last = 0;              // that one too
  std::optional<std::uint64_t> total;  // nothing: "*"
};
std::optional<content_range> parse_content_range(std::string_view text) noexcept;
// The total of "bytes */65536", as answers say that a range lies behind the end.
std::optional<std::uint64_t> parse_unsatisfied_range(std::string_view text) noexcept;

// Seconds, as Retry-After has them; 0: a date, or what is none, which is left to one's own patience.
std::chrono::milliseconds pause_of(std::string_view text) noexcept;

struct response_head {
  static constexpr std::size_t most_bytes = std::size_t{64} << 10;

  int status = 0;
  std::optional<std::uint64_t> length;  // of the body
  bool chunked = false;
  bool closes = false;  // the connection is of no more use
  std::string range;    // these as they came; empty where they did not
  std::string etag;
  std::string last_modified;
  std::string encoding;
  std::string location;
  std::string retry_after;
  std::string date;
  std::string bucket_region;  // x-amz-bucket-region
  std::string upload_mark;    // x-amz-meta-penstock-upload
};

// Reads the head at the beginning of what has come, as leniently as libcurl: lines may end with LF alone, be folded, come twice (the first
// counts) and have blanks around their names. Returns how long it is, with the empty line; 0: not all of it has come. Errors: io,
// which says what is wrong.
result<std::size_t> parse_head(std::string_view come, response_head& into);

// Takes "Transfer-Encoding: chunked" off a body that comes in parts.
class chunked_body {
 public:
  // Of what has come: bytes of the body that lie at its beginning, after skip bytes that are none. Both 0: more is needed, and what there
  // is has to be kept. Errors: io.
  struct step {
    std::size_t skip = 0;
    std::size_t body = 0;
  };
  result<step> next(std::string_view come);
  // So many bytes of the body were taken.
  void took(std::size_t bytes) noexcept { left_ -= bytes; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }

 private:
  static constexpr std::size_t most_line = 1024;
  static constexpr unsigned most_trailers = 64;
  std::uint64_t left_ = 0;  // of this chunk
  bool begun_ = false;
  bool last_ = false;
  bool ended_ = false;
  unsigned trailers_ = 0;
};

}  // namespace penstock::source::remote
