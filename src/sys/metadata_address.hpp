// Addresses at which machines and clouds provide credentials (metadata services, container agents). Neither a server nor a host name may
// redirect a request there; only a URL that contains such an address may connect to it. Pure functions.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace penstock::sys {

// Link-local addresses, 169.254.0.0/16 (RFC 3927), including 169.254.169.254 (Amazon, Google, Azure, Oracle and others) and 169.254.170.2
// (Amazon containers); 100.100.100.200 (Alibaba); 168.63.129.16 (Azure's wire server); 192.0.0.192 (Oracle).
inline bool is_metadata_address(in_addr address) noexcept {
  const auto number = ntohl(address.s_addr);
  return (number & 0xffff0000U) == 0xa9fe0000U || number == 0x646464c8U || number == 0xa83f8110U || number == 0xc00000c0U;
}

// fe80::/10; fd00:ec2::/32 (Amazon); fd20:ce::254 (Google); and the IPv4 addresses above embedded in IPv6: mapped (::ffff:0:0/96),
// compatible (::/96), NAT64 (64:ff9b::/96) and 6to4 (2002::/16).
inline bool is_metadata_address(const in6_addr& address) noexcept {
  constexpr std::array<std::uint8_t, 4> of_amazon{0xfd, 0x00, 0x0e, 0xc2};
  constexpr std::array<std::uint8_t, 16> of_google{0xfd, 0x20, 0x00, 0xce, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54};
  constexpr std::array<std::uint8_t, 12> of_nat64{0x00, 0x64, 0xff, 0x9b};
  constexpr std::array<std::uint8_t, 2> of_6to4{0x20, 0x02};
  const auto begins_with = [&](const auto& prefix) { return std::memcmp(address.s6_addr, prefix.data(), prefix.size()) == 0; };
  const auto inside = [&](std::size_t at) {
    in_addr four{};
    std::memcpy(&four, &address.s6_addr[at], sizeof(four));
    return is_metadata_address(four);
  };
  if (IN6_IS_ADDR_LINKLOCAL(&address) != 0 || begins_with(of_amazon) || begins_with(of_google)) return true;
  if (begins_with(of_6to4)) return inside(2);
  const bool has_four_last = IN6_IS_ADDR_V4MAPPED(&address) != 0 || IN6_IS_ADDR_V4COMPAT(&address) != 0 || begins_with(of_nat64);
  return has_four_last && inside(12);
}

inline bool is_metadata_address(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof(four));
    return is_metadata_address(four.sin_addr);
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof(six));
  return is_metadata_address(six.sin6_addr);
}

// Returns true for host names that clouds assign to these addresses. name must be in lower case.
inline bool is_metadata_name(std::string_view name) noexcept {
  constexpr std::array<std::string_view, 8> names{"metadata",          "metadata.google.internal",  "metadata.goog",
                                                  "metadata.internal", "metadata.azure.internal",   "metadata.tencentyun.com",
                                                  "instance-data",     "instance-data.ec2.internal"};
  for (const auto each : names) {
    if (name == each) return true;
  }
  return false;
}

}  // namespace penstock::sys
