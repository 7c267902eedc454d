// SHA-256, and proof that another process or the sender of a request knows a secret. Uses OpenSSL's libcrypto, which is loaded on first
// use, so that other programs do not need it. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::sys {

using digest = std::array<std::byte, 32>;

// Returns ok if the library is usable. Errors: unsupported (neither libcrypto.so.3 nor libcrypto.so.1.1 is installed).
status can_prove();
result<digest> hmac_sha256(std::string_view secret, std::span<const std::byte> of);
result<digest> sha256(std::span<const std::byte> of);

// SHA-256 of bytes that arrive in pieces. One thread per object.
class sha256_state {
 public:
  // Errors: those of can_prove(); io (libcrypto rejects SHA-256).
  static result<sha256_state> begin();
  void update(std::span<const std::byte> bytes);
  // Returns the hash of all bytes. Call nothing afterwards. Errors: io (libcrypto failed here or in an update).
  result<digest> finish();

 private:
  struct end_of_context {
    void operator()(void* context) const noexcept;
  };
  using context = std::unique_ptr<void, end_of_context>;
  explicit sha256_state(context state) : state_(std::move(state)) {}
  context state_;
  bool failed_ = false;
};

// For servers that use MD5 as a checksum; never for security. Errors: also io (libcrypto is configured without MD5).
result<std::array<std::byte, 16>> md5(std::span<const std::byte> of);
// Returns random bytes from the kernel's generator.
result<digest> random_digest();
// Compares in constant time.
[[nodiscard]] bool same(const digest& one, std::span<const std::byte> other) noexcept;

}  // namespace penstock::sys
