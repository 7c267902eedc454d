// Small requests beside those for data: for credentials, sizes and lists. Who sends them is handed in, so that what asks is tested without
// a network. Values.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

struct header {
  std::string name;
  std::string value;
  bool operator==(const header&) const = default;
};

// The value of the first header of that name, in capitals or not.
[[nodiscard]] inline std::optional<std::string_view> header_value(const std::vector<header>& headers, std::string_view name) {
  const auto same_letter = [](char a, char b) { return a == b || ((a ^ b) == 0x20 && (a | 0x20) >= 'a' && (a | 0x20) <= 'z'); };
  for (const header& one : headers) {
    if (std::ranges::equal(one.name, name, same_letter)) return one.value;
  }
  return std::nullopt;
}

struct control_request {
  std::string method = "GET";
  url address;
  std::vector<header> headers;
  std::string body;
  std::chrono::milliseconds timeout{5000};         // of the whole request
  std::size_t most_bytes = std::size_t{64} << 10;  // of the answer's body
  bool use_proxy = true;                           // false: of this machine or its host; never by a proxy
};

struct control_answer {
  int status_code = 0;  // of HTTP, any
  std::vector<header> headers;
  std::string body;
};

// Sends one request and blocks until its answer is whole. Follows no redirect, verifies certificates, and says nothing of the request's
// headers or body in an error. Thread-safe. Errors: timed_out; io (no connection, no answer, one that is too long).
using control_call = std::function<result<control_answer>(const control_request&)>;

}  // namespace penstock::source::remote
