// SHA-256 from OpenSSL's libcrypto. The library is loaded on first use, so that the rest of the command does not need it. One thread per
// object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::cli {

class sha256 {
 public:
  // Errors: unsupported (neither libcrypto.so.3 nor libcrypto.so.1.1 is installed); io (libcrypto refuses SHA-256).
  static result<sha256> begin();
  void update(std::span<const std::byte> bytes);
  // Returns the hash of all bytes. This must be the last call on the object. Errors: io (libcrypto failed here or in an update).
  result<std::array<std::uint8_t, 32>> finish();

 private:
  struct end_of_context {
    void operator()(void* context) const noexcept;
  };
  using context = std::unique_ptr<void, end_of_context>;
  explicit sha256(context state) : state_(std::move(state)) {}
  context state_;
  bool failed_ = false;
};

}  // namespace penstock::cli
