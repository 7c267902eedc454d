#include "sys/secret.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <cerrno>
#include <fstream>

#include "base/refused_call.hpp"

namespace penstock::sys {

namespace {

struct libcrypto {
  const void* (*sha256)() = nullptr;
  const void* (*md5)() = nullptr;  // may be missing
  unsigned char* (*hmac)(const void* kind, const void* key, int key_bytes, const unsigned char* data, std::size_t bytes, unsigned char* to,
                         unsigned* to_bytes) = nullptr;
  int (*digest)(const void* data, std::size_t bytes, unsigned char* to, unsigned* to_bytes, const void* kind, void* engine) = nullptr;
  void* (*new_context)() = nullptr;
  void (*free_context)(void* context) = nullptr;
  int (*begin)(void* context, const void* kind, void* engine) = nullptr;
  int (*update)(void* context, const void* data, std::size_t bytes) = nullptr;
  int (*finish)(void* context, unsigned char* to, unsigned* to_bytes) = nullptr;
  [[nodiscard]] bool usable() const noexcept {
    return sha256 != nullptr && hmac != nullptr && digest != nullptr && new_context != nullptr && free_context != nullptr &&
           begin != nullptr && update != nullptr && finish != nullptr;
  }
};

template <class Function>
void look_up(void* in, const char* name, Function& to) noexcept {
  to = reinterpret_cast<Function>(dlsym(in, name));
}

libcrypto open_libcrypto() {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* const opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) continue;
    libcrypto found;
    look_up(opened, "EVP_sha256", found.sha256);
    look_up(opened, "EVP_md5", found.md5);
    look_up(opened, "HMAC", found.hmac);
    look_up(opened, "EVP_Digest", found.digest);
    look_up(opened, "EVP_MD_CTX_new", found.new_context);
    look_up(opened, "EVP_MD_CTX_free", found.free_context);
    look_up(opened, "EVP_DigestInit_ex", found.begin);
    look_up(opened, "EVP_DigestUpdate", found.update);
    look_up(opened, "EVP_DigestFinal_ex", found.finish);
    if (found.usable()) return found;
  }
  return {};
}

const libcrypto& library() {
  static const libcrypto opened = open_libcrypto();
  return opened;
}

}  // namespace

status can_prove() {
  if (library().usable()) return {};
  return {errc::unsupported, "secrets require OpenSSL's libcrypto.so.3, which was not found"};
}

result<digest> hmac_sha256(std::string_view secret, std::span<const std::byte> of) {
  if (auto problem = can_prove(); !problem.ok()) return problem;
  digest made{};
  unsigned bytes = made.size();
  const auto* const done =
      library().hmac(library().sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const unsigned char*>(of.data()),
                     of.size(), reinterpret_cast<unsigned char*>(made.data()), &bytes);
  if (done == nullptr || bytes != made.size()) return status(errc::io, "libcrypto failed to compute an HMAC-SHA256");
  return made;
}

result<digest> sha256(std::span<const std::byte> of) {
  if (auto problem = can_prove(); !problem.ok()) return problem;
  digest made{};
  unsigned bytes = made.size();
  const int done =
      library().digest(of.data(), of.size(), reinterpret_cast<unsigned char*>(made.data()), &bytes, library().sha256(), nullptr);
  if (done != 1 || bytes != made.size()) return status(errc::io, "libcrypto failed to compute a SHA-256 hash");
  return made;
}

void sha256_state::end_of_context::operator()(void* context) const noexcept { library().free_context(context); }

result<sha256_state> sha256_state::begin() {
  if (auto problem = can_prove(); !problem.ok()) return problem;
  context made(library().new_context());
  if (made == nullptr || library().begin(made.get(), library().sha256(), nullptr) != 1)
    return status(errc::io, "libcrypto failed to start a SHA-256 hash");
  return sha256_state(std::move(made));
}

void sha256_state::update(std::span<const std::byte> bytes) {
  if (library().update(state_.get(), bytes.data(), bytes.size()) != 1) failed_ = true;
}

result<digest> sha256_state::finish() {
  digest made{};
  unsigned bytes = 0;
  if (failed_ || library().finish(state_.get(), reinterpret_cast<unsigned char*>(made.data()), &bytes) != 1 || bytes != made.size())
    return status(errc::io, "libcrypto failed to compute a SHA-256 hash");
  return made;
}

result<std::array<std::byte, 16>> md5(std::span<const std::byte> of) {
  if (auto problem = can_prove(); !problem.ok()) return problem;
  std::array<std::byte, 16> made{};
  unsigned bytes = made.size();
  const bool done = library().md5 != nullptr && library().digest(of.data(), of.size(), reinterpret_cast<unsigned char*>(made.data()),
                                                                 &bytes, library().md5(), nullptr) == 1;
  if (!done || bytes != made.size()) return status(errc::io, "libcrypto cannot compute MD5, for example because FIPS mode forbids it");
  return made;
}

namespace {

// Used if a sandbox denies getrandom(2).
result<digest> random_digest_of_device() {
  digest made{};
  std::ifstream from("/dev/urandom", std::ios::binary);
  if (!from.read(reinterpret_cast<char*>(made.data()), static_cast<std::streamsize>(made.size())))
    return status(errc::unsupported, "getrandom is denied, and /dev/urandom cannot be read");
  return made;
}

}  // namespace

result<digest> random_digest() {
  digest made{};
  for (std::size_t at = 0; at < made.size();) {
    const ssize_t got = getrandom(made.data() + at, made.size() - at, 0);
    if (got < 0 && is_refused_call(errno)) return random_digest_of_device();
    if (got < 0 && errno != EINTR) return status::from_errno(errno, "getrandom");
    at += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return made;
}

bool same(const digest& one, std::span<const std::byte> other) noexcept {
  if (other.size() != one.size()) return false;
  volatile unsigned differs = 0;
  for (std::size_t i = 0; i < one.size(); ++i) differs = differs | std::to_integer<unsigned>(one[i] ^ other[i]);
  return differs == 0;
}

}  // namespace penstock::sys
