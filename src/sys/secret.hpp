// What proves that somebody knows a secret, another process or the sender of a request: SHA-256 and HMAC-SHA256 of OpenSSL's libcrypto,
// which is opened at run time where it is asked for, so that nobody else needs it. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::sys {

using digest = std::array<std::byte, 32>;

// Errors: unsupported (there is no libcrypto.so.3 or libcrypto.so.1.1 here).
status can_prove();
result<digest> hmac_sha256(std::string_view secret, std::span<const std::byte> of);
result<digest> sha256(std::span<const std::byte> of);
// For servers that check with it what they got, and for nothing that has to be safe. Errors: also io (libcrypto is set up without it).
result<std::array<std::byte, 16>> md5(std::span<const std::byte> of);
// From the kernel's generator.
result<digest> random_digest();
// Takes as long wherever they differ.
[[nodiscard]] bool same(const digest& one, std::span<const std::byte> other) noexcept;

}  // namespace penstock::sys
