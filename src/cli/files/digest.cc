#include "cli/files/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "sys/secret.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::cli {
namespace {

constexpr std::array<std::size_t, 3> digest_digits{64, 16, 32};

std::string in_hexadecimal(const sys::digest& bytes) {
  std::string text;
  for (const std::byte each : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(each));
  return text;
}

class digest_sha256 final : public digest {
 public:
  explicit digest_sha256(sys::sha256_state state) : state_(std::move(state)) {}
  void update(std::span<const std::byte> bytes) override { state_.update(bytes); }
  result<std::string> value() override {
    auto bytes = state_.finish();
    if (!bytes) return bytes.error();
    return in_hexadecimal(*bytes);
  }

 private:
  sys::sha256_state state_;
};

class digest_xxh64 final : public digest {
 public:
  digest_xxh64() { XXH64_reset(&state_, 0); }
  void update(std::span<const std::byte> bytes) override { XXH64_update(&state_, bytes.data(), bytes.size()); }
  result<std::string> value() override { return fmt::format("{:016x}", XXH64_digest(&state_)); }

 private:
  XXH64_state_t state_{};
};

class digest_xxh128 final : public digest {
 public:
  digest_xxh128() { XXH3_128bits_reset(&state_); }
  void update(std::span<const std::byte> bytes) override { XXH3_128bits_update(&state_, bytes.data(), bytes.size()); }
  result<std::string> value() override {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t state_;  // reset in the constructor
};

}  // namespace

std::optional<digest_kind> digest_named(std::string_view name) {
  std::string small(name);
  std::transform(small.begin(), small.end(), small.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const found = std::find(digest_names.begin(), digest_names.end(), small);
  if (found == digest_names.end()) return std::nullopt;
  return static_cast<digest_kind>(found - digest_names.begin());
}

std::optional<digest_kind> digest_of_length(std::size_t digits) {
  const auto* const found = std::find(digest_digits.begin(), digest_digits.end(), digits);
  if (found == digest_digits.end()) return std::nullopt;
  return static_cast<digest_kind>(found - digest_digits.begin());
}

result<std::unique_ptr<digest>> make_digest(digest_kind kind) {
  if (kind == digest_kind::xxh64) return std::unique_ptr<digest>(std::make_unique<digest_xxh64>());
  if (kind == digest_kind::xxh128) return std::unique_ptr<digest>(std::make_unique<digest_xxh128>());
  auto state = sys::sha256_state::begin();
  if (!state && state.error().code() == errc::unsupported) {
    return status(
        errc::unsupported,
        "sha256 needs OpenSSL's libcrypto.so.3, which is not installed: install libssl3 (Debian, Ubuntu) or openssl-libs (Fedora, RHEL), "
        "or choose xxh128, which needs nothing");
  }
  if (!state) return state.error();
  return std::unique_ptr<digest>(std::make_unique<digest_sha256>(*std::move(state)));
}

}  // namespace penstock::cli
