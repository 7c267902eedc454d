// SHA-256 and HMAC-SHA256, compared with the published values of FIPS 180-4's examples and RFC 4231.
#include "sys/secret.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace penstock::sys {
namespace {

std::span<const std::byte> secret_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string secret_hex(const result<digest>& made) {
  if (!made) return std::string(made.error().message());
  std::string text;
  for (const std::byte byte : *made) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

TEST(secret, sha256_is_that_of_the_standard) {
  if (const auto problem = can_prove(); !problem.ok()) GTEST_SKIP() << problem.message();
  EXPECT_EQ(secret_hex(sha256(secret_bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(secret_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(secret, hmac_sha256_is_that_of_rfc_4231) {
  if (const auto problem = can_prove(); !problem.ok()) GTEST_SKIP() << problem.message();
  EXPECT_EQ(secret_hex(hmac_sha256("Jefe", secret_bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace penstock::sys
