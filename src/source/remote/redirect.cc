#include "source/remote/redirect.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <string>

#include <fmt/format.h>

#include "sys/metadata_address.hpp"

namespace penstock::source::remote {

namespace {

// Numbers are read as the resolver reads them, which also takes whole numbers, octal and hexadecimal ones.
bool keeps_credentials(const std::string& host) noexcept {
  if (sys::is_metadata_name(host)) return true;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return sys::is_metadata_address(six);
  in_addr four{};
  return inet_aton(host.c_str(), &four) != 0 && sys::is_metadata_address(four);
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
