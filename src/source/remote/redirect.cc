#include "source/remote/redirect.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <algorithm>

#include <array>
#include <string>

#include <fmt/format.h>

#include "sys/link_local.hpp"

namespace penstock::source::remote {

namespace {

// Of the machine itself, or of its cloud: nothing that a server may send anybody to. Numbers are read as the resolver reads them, which
// takes a whole number, octal and hexadecimal ones, too.
bool keeps_credentials(const std::string& host) noexcept {
  constexpr std::array<std::string_view, 3> names{"metadata.google.internal", "metadata", "instance-data"};
  if (std::find(names.begin(), names.end(), host) != names.end()) return true;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return sys::is_link_local(six);
  in_addr four{};
  return inet_aton(host.c_str(), &four) != 0 && sys::is_link_local(four);
}

status refuse(std::string_view why) { return {errc::invalid_argument, std::string(why)}; }

}  // namespace

result<url> redirect_target(const url& from, std::string_view location) {
  if (location.empty()) return refuse("it names none");
  const bool of_same_server = location.starts_with('/') && !location.starts_with("//");
  const auto text = of_same_server               ? (from.tls ? "https://" : "http://") + from.authority() + std::string(location)
                    : location.starts_with("//") ? (from.tls ? "https:" : "http:") + std::string(location)
                                                 : std::string(location);
  auto to = parse_http_url(text);
  if (!to) return refuse("it is no URL that can be followed");
  if (from.tls && !to->tls) return refuse(fmt::format("it leads from https to http, to {}", to->host));
  if (!of_same_server && keeps_credentials(to->host)) return refuse(fmt::format("{} is where machines keep credentials", to->host));
  return to;
}

}  // namespace penstock::source::remote
