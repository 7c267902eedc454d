#include "cli/files/sha256.hpp"

#include <dlfcn.h>

namespace penstock::cli {
namespace {

struct message_digests {
  void* (*make)() = nullptr;
  void (*free)(void* context) = nullptr;
  const void* (*kind)() = nullptr;
  int (*begin)(void* context, const void* kind, void* engine) = nullptr;
  int (*update)(void* context, const void* data, std::size_t bytes) = nullptr;
  int (*finish)(void* context, unsigned char* to, unsigned* to_bytes) = nullptr;
  [[nodiscard]] bool usable() const {
    return make != nullptr && free != nullptr && kind != nullptr && begin != nullptr && update != nullptr && finish != nullptr;
  }
};

template <class Function>
void look_up(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(::dlsym(library, name));
}

message_digests open_libcrypto() {
  for (const char* const name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    message_digests found;
    look_up(library, "EVP_MD_CTX_new", found.make);
    look_up(library, "EVP_MD_CTX_free", found.free);
    look_up(library, "EVP_sha256", found.kind);
    look_up(library, "EVP_DigestInit_ex", found.begin);
    look_up(library, "EVP_DigestUpdate", found.update);
    look_up(library, "EVP_DigestFinal_ex", found.finish);
    if (found.usable()) return found;
  }
  return {};
}

const message_digests& libcrypto() {
  static const message_digests opened = open_libcrypto();
  return opened;
}

}  // namespace

void sha256::end_of_context::operator()(void* context) const noexcept { libcrypto().free(context); }

result<sha256> sha256::begin() {
  const message_digests& library = libcrypto();
  if (!library.usable()) {
    return status(
        errc::unsupported,
        "sha256 needs OpenSSL's libcrypto.so.3, which is not installed: install libssl3 (Debian, Ubuntu) or openssl-libs (Fedora, RHEL), "
        "or use xxh128, which has no dependencies");
  }
  context made(library.make());
  if (made == nullptr || library.begin(made.get(), library.kind(), nullptr) != 1)
    return status(errc::io, "libcrypto failed to start a SHA-256 computation");
  return sha256(std::move(made));
}

void sha256::update(std::span<const std::byte> bytes) {
  if (libcrypto().update(state_.get(), bytes.data(), bytes.size()) != 1) failed_ = true;
}

result<std::array<std::uint8_t, 32>> sha256::finish() {
  std::array<std::uint8_t, 32> made{};
  unsigned bytes = 0;
  if (failed_ || libcrypto().finish(state_.get(), made.data(), &bytes) != 1 || bytes != made.size())
    return status(errc::io, "libcrypto failed to compute a SHA-256 hash");
  return made;
}

}  // namespace penstock::cli
