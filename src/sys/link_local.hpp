// Addresses of the link: there machines keep credentials (metadata services of clouds, of containers), which nothing but a program that
// names such an address itself may be led to. Pure functions.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace penstock::sys {

// 169.254.0.0/16 (RFC 3927), with 169.254.169.254 and 169.254.170.2.
inline bool is_link_local(in_addr address) noexcept { return (ntohl(address.s_addr) & 0xffff0000U) == 0xa9fe0000U; }

// fe80::/10; fd00:ec2::/32, where Amazon's is; and those of above in an IPv6 address: mapped (::ffff:0:0/96), or behind NAT64
// (64:ff9b::/96).
inline bool is_link_local(const in6_addr& address) noexcept {
  constexpr std::uint8_t of_amazon[4] = {0xfd, 0x00, 0x0e, 0xc2};
  constexpr std::uint8_t of_nat64[12] = {0x00, 0x64, 0xff, 0x9b};
  if (IN6_IS_ADDR_LINKLOCAL(&address) != 0 || std::memcmp(address.s6_addr, of_amazon, sizeof(of_amazon)) == 0) return true;
  if (IN6_IS_ADDR_V4MAPPED(&address) == 0 && std::memcmp(address.s6_addr, of_nat64, sizeof(of_nat64)) != 0) return false;
  in_addr inside{};
  std::memcpy(&inside, &address.s6_addr[12], sizeof(inside));
  return is_link_local(inside);
}

inline bool is_link_local(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof(four));
    return is_link_local(four.sin_addr);
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof(six));
  return is_link_local(six.sin6_addr);
}

}  // namespace penstock::sys
