// Files on web servers: queries their size and version with HEAD, and builds requests for their bytes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "remote/net/control.hpp"
#include "remote/net/network.hpp"
#include "remote/net/patience.hpp"
#include "remote/net/url.hpp"
#include "remote/object/object.hpp"

namespace penstock::source::remote {

// Returns ok if the headers can be sent: their names and values are valid, and Penstock does not set them itself. Error: invalid_argument;
// the message contains the header's name but not its value.
status check_headers(const std::vector<header>& headers);

// headers: the user's; sent only to home's server.
std::shared_ptr<protocol> make_http_protocol(const url& home, const std::vector<header>& headers);

// A short request. Its headers may depend on the method.
struct question {
  std::string_view method = "GET";
  const url& address;
  std::function<result<std::vector<header>>(std::string_view method)> headers;
  std::size_t most_bytes = std::size_t{1} << 20;  // limit on the size of the response body
  bool begins_only = false;                       // the beginning of a longer body is sufficient
};

// Sends a short request. Retries while the server is too busy or the connection fails. Errors: those of the door, after the printable
// address; if all attempts failed, that of the last response.
result<sys::web_answer> ask(network& by, const question& what, const patience& how);

struct size_answer {
  sys::web_answer answer;
  bool of_head = false;
};
// Queries an object's size like ask(), with HEAD or GET as specified in the question. If HEAD fails or returns no size, tries a GET of the
// first byte, because many servers do not support HEAD or sign addresses only for GET; then a GET without a range.
result<size_answer> ask_for_size(network& by, question what, const patience& how);

// Returns the object's version from a response.
[[nodiscard]] version version_of(const sys::web_answer& answer);

// Returns the object's size from a response. A size of 0 from HEAD is ignored, because servers that do not support HEAD return it for every
// object.
[[nodiscard]] std::optional<std::uint64_t> size_of(const sys::web_answer& answer, bool of_head);

// Finds an object's size and final address: queries the size and follows redirects. size: the size, if the user has set it; then no request
// is sent. by_head: false for a presigned URL, which is signed for GET. Errors contain the address: not_found, permission_denied, io,
// timed_out, unsupported.
result<object_facts> find_http_object(network& by, const url& address, const std::vector<header>& headers,
                                      std::optional<std::uint64_t> size, const patience& how, bool by_head = true);

// Returns the error for an unsuccessful status. shown: the printable address.
status error_of(int status, std::string_view shown);

}  // namespace penstock::source::remote
