// Files of web servers: what a HEAD says of them, and how their bytes are asked for.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "source/remote/control.hpp"
#include "source/remote/network.hpp"
#include "source/remote/object.hpp"
#include "source/remote/patience.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

// Whether they may be sent: names and values that fit a header, and none that a request has already. Errors: invalid_argument, which names
// the header and not its value.
status check_headers(const std::vector<header>& headers);

// Headers of the user's: sent to the server that he named (home), and to no other.
std::shared_ptr<protocol> make_http_protocol(const url& home, const std::vector<header>& headers);

// A short request. Its headers may depend on the method.
struct question {
  std::string_view method = "GET";
  const url& address;
  std::function<result<std::vector<header>>(std::string_view method)> headers;
  std::size_t most_bytes = std::size_t{1} << 20;  // of the answer's body
  bool begins_only = false;                       // of a longer one, the beginning is enough
};

// Asks again while the server is too busy or its connection breaks. Errors: those of the door, with what is shown of the address in front;
// and that of the last answer if none was better.
result<sys::web_answer> ask(network& by, const question& what, const patience& how);

struct size_answer {
  sys::web_answer answer;
  bool of_head = false;
};
// Asks how large an object is, as ask() does, by the method of the question: HEAD or GET. If HEAD fails in any way or tells no size, GET of
// the first byte takes its place, since many servers do not know HEAD, or sign addresses for GET alone; and then GET without a range.
result<size_answer> ask_for_size(network& by, question what, const patience& how);

// What an answer says of the object's version.
[[nodiscard]] version version_of(const sys::web_answer& answer);

// The size that an answer tells. HEAD tells none if it says 0, for servers that do not know HEAD say so of every object.
[[nodiscard]] std::optional<std::uint64_t> size_of(const sys::web_answer& answer, bool of_head);

// How large it is and where it really lies: asks for its size and follows redirects.
// size: that its user knows; then nothing is asked. by_head: false: of a presigned one, which is signed for GET. Errors name the address:
// not_found, permission_denied, io, timed_out, unsupported.
result<object_facts> find_http_object(network& by, const url& address, const std::vector<header>& headers,
                                      std::optional<std::uint64_t> size, const patience& how, bool by_head = true);

// Of an answer that is no success. shown: the address.
status error_of(int status, std::string_view shown);

}  // namespace penstock::source::remote
