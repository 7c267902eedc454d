// Small requests for credentials, sizes and lists. The function that sends them is a parameter, so callers can be tested without a network.
// Values.
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
#include "remote/net/url.hpp"

namespace penstock::source::remote {

struct header {
  std::string name;
  std::string value;
  bool operator==(const header&) const = default;
};

// Returns the value of the first header with that name, ignoring case.
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
  std::chrono::milliseconds timeout{5000};         // for the whole request
  std::size_t most_bytes = std::size_t{64} << 10;  // limit on the size of the response body
  bool use_proxy = true;  // false: for a service on this machine or its host, which must not be reached through a proxy
};

struct control_answer {
  int status_code = 0;  // any HTTP status
  std::vector<header> headers;
  std::string body;
};

// Sends one request and blocks until the whole response has arrived. Verifies certificates and does not follow redirects. Errors never
// contain the request's headers or body. Thread-safe. Errors: timed_out; io (no connection, no response, or one that is too large).
using control_call = std::function<result<control_answer>(const control_request&)>;

}  // namespace penstock::source::remote
