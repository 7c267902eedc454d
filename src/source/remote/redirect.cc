#include "source/remote/redirect.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <algorithm>

#include <array>
#include <cstring>
#include <string>

#include <fmt/format.h>

namespace penstock::source::remote {

namespace {

constexpr std::uint32_t link_local = 0xa9fe0000;  // 169.254.0.0/16, which metadata services answer at
constexpr std::uint32_t link_local_mask = 0xffff0000;

bool is_link_local(in_addr address) noexcept { return (ntohl(address.s_addr) & link_local_mask) == link_local; }

bool is_link_local(const in6_addr& address) noexcept {
  if (IN6_IS_ADDR_LINKLOCAL(&address) != 0) return true;
  if (address.s6_addr[0] == 0xfd && address.s6_addr[1] == 0x00 && address.s6_addr[2] == 0x0e && address.s6_addr[3] == 0xc2) return true;
  if (IN6_IS_ADDR_V4MAPPED(&address) == 0) return false;
  in_addr mapped{};
  std::memcpy(&mapped, &address.s6_addr[12], sizeof(mapped));
  return is_link_local(mapped);
}

// Of the machine itself, or of its cloud: nothing that a server may send anybody to. Numbers are read as the resolver reads them, which
// takes a whole number, octal and hexadecimal ones, too.
bool keeps_credentials(const std::string& host) noexcept {
  constexpr std::array<std::string_view, 3> names{"metadata.google.internal", "metadata", "instance-data"};
  if (std::find(names.begin(), names.end(), host) != names.end()) return true;
  in6_addr six{};
  if (inet_pton(AF_INET6, host.c_str(), &six) == 1) return is_link_local(six);
  in_addr four{};
  return inet_aton(host.c_str(), &four) != 0 && is_link_local(four);
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
