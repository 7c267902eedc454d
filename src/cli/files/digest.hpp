// Checksums of bytes that are added piece by piece. One thread per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::cli {

enum class digest_kind : std::uint8_t { sha256 = 0, xxh64, xxh128 };
inline constexpr std::array<const char*, 3> digest_names{"sha256", "xxh64", "xxh128"};

inline std::string_view name_of(digest_kind kind) { return digest_names[static_cast<std::size_t>(kind)]; }
// Ignores case. Returns nullopt for an unknown name.
std::optional<digest_kind> digest_named(std::string_view name);
// Returns the kind whose values have this many hexadecimal digits; nullopt if there is none.
std::optional<digest_kind> digest_of_length(std::size_t digits);

class digest {
 public:
  virtual ~digest() = default;
  virtual void update(std::span<const std::byte> bytes) = 0;
  // Returns the checksum of all bytes in lower-case hexadecimal, as sha256sum and xxhsum print it. Call only once, as the last call on the
  // object. Errors: io (from libcrypto).
  [[nodiscard]] virtual result<std::string> value() = 0;
};
// Errors: unsupported (sha256 without libcrypto; the message says what to install); io (from libcrypto).
result<std::unique_ptr<digest>> make_digest(digest_kind kind);

}  // namespace penstock::cli
