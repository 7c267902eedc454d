// The web interface of sys: what it connects to, and what it refuses.
#include "sys/web.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <string>

#include <fmt/format.h>

#include "support/web_server.hpp"
#include "sys/metadata_address.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

bool is_metadata_address(const std::string& text) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) return sys::is_metadata_address(four);
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &six), 1) << text;
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_addr = six;
  sockaddr_storage any{};
  std::memcpy(&any, &at, sizeof(at));
  return sys::is_metadata_address(reinterpret_cast<const sockaddr&>(any)) && sys::is_metadata_address(six);
}

TEST(metadata_addresses, are_those_at_which_machines_keep_credentials) {
  for (const auto* each : {"169.254.169.254", "169.254.170.2", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fe80::1",
                           "febf::1", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "::ffff:100.100.100.200",
                           "64:ff9b::6464:64c8", "2002:6464:64c8::", "::168.63.129.16", "fd20:ce::254"})
    EXPECT_TRUE(is_metadata_address(each)) << each;
  for (const auto* each : {"169.253.255.255", "169.255.0.0", "127.0.0.1", "10.0.0.1", "fec0::1", "fd00:ec3::254", "::1", "::ffff:10.0.0.1",
                           "64:ff9b::a00:1", "2001:db8::a9fe:a9fe", "100.100.100.201", "168.63.129.17", "2002:a00:1::"})
    EXPECT_FALSE(is_metadata_address(each)) << each;
}

std::shared_ptr<sys::web_door> door_with(const std::string& resolved) {
  sys::web_door::options how;
  how.resolved = {resolved};
  auto opened = sys::web_door::open(how);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  return opened.ok() ? *std::move(opened) : nullptr;
}

sys::web_request get(const std::string& url) {
  sys::web_request made;
  made.url = url;
  made.timeout = 50ms;
  return made;
}

TEST(web_door, does_not_follow_a_name_to_a_metadata_address) {
  for (const auto* address : {"169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]"}) {
    const auto door = door_with(fmt::format("credentials.example:80:{}", address));
    ASSERT_NE(door, nullptr);
    const auto answer = door->exchange(get("http://credentials.example/latest"));
    EXPECT_EQ(answer.error().code(), errc::permission_denied) << address << answer.error().message();
    EXPECT_NE(answer.error().message().find("credentials.example: the name resolves to an address that provides"), std::string::npos)
        << answer.error().message();
    const sys::web_stop never;
    const auto made = door->connect("http://credentials.example:80", 50ms, never);
    EXPECT_EQ(made.error().code(), errc::permission_denied) << address << made.error().message();
  }
}

TEST(web_door, tries_the_other_addresses_of_such_a_name) {
  web_server server{std::vector<std::byte>(10)};
  const auto door = door_with(fmt::format("both.example:{}:169.254.169.254,127.0.0.1", server.port()));
  ASSERT_NE(door, nullptr);
  const auto origin = fmt::format("http://both.example:{}", server.port());
  auto asked = get(origin + "/data");
  asked.timeout = 10s;
  const auto answer = door->exchange(asked);
  EXPECT_TRUE(answer.ok()) << answer.error().message();
  const sys::web_stop never;
  EXPECT_TRUE(door->connect(origin, 10s, never).ok());
}

TEST(web_door, goes_to_an_address_of_the_link_that_is_named) {
  const auto door = door_with("localhost:1:127.0.0.1");
  ASSERT_NE(door, nullptr);
  for (const auto* url : {"http://169.254.1.1:9/x", "http://169.254.1.1/x", "http://[fe80::1]/x"})
    EXPECT_NE(door->exchange(get(url)).error().code(), errc::permission_denied) << url;
  const auto by_name = door_with("metadata.example:80:169.254.1.1");
  auto asked = get("http://metadata.example/x");
  asked.by_proxy = false;
  EXPECT_NE(by_name->exchange(asked).error().code(), errc::permission_denied);
}

TEST(web_door, says_when_nobody_has_the_name) {
  addrinfo* found = nullptr;
  if (getaddrinfo("nobody.invalid", nullptr, nullptr, &found) != EAI_NONAME)
    GTEST_SKIP() << "the resolver of this machine does not say that a name is unknown";
  const auto door = door_with("localhost:1:127.0.0.1");
  ASSERT_NE(door, nullptr);
  EXPECT_TRUE(sys::is_unknown_host(door->exchange(get("http://nobody.invalid/x")).error()));
  const sys::web_stop never;
  EXPECT_TRUE(sys::is_unknown_host(door->connect("http://nobody.invalid:80", 10s, never).error()));
  EXPECT_FALSE(sys::is_unknown_host(door->exchange(get("http://127.0.0.1:1/x")).error()));
}

}  // namespace
}  // namespace penstock::testing
