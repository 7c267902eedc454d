#include "remote/credentials/secret_text.hpp"

#include <string.h>  // NOLINT(modernize-deprecated-headers): explicit_bzero is glibc's

#include <cstring>
#include <utility>

namespace penstock::source::remote {

secret_text::secret_text(std::string_view text) : size_(text.size()) {
  if (text.empty()) return;
  bytes_ = std::make_unique<char[]>(text.size());
  std::memcpy(bytes_.get(), text.data(), text.size());
}

secret_text secret_text::taken_from(std::string& text) {
  secret_text made(text);
  wipe(text);
  return made;
}

secret_text::secret_text(secret_text&& other) noexcept : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)) {}

secret_text& secret_text::operator=(secret_text other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

bool secret_text::operator==(const secret_text& other) const noexcept {
  if (size_ != other.size_) return false;
  volatile unsigned differs = 0;
  for (std::size_t i = 0; i < size_; ++i) differs = differs | static_cast<unsigned char>(bytes_[i] ^ other.bytes_[i]);
  return differs == 0;
}

void secret_text::clear() noexcept {
  if (bytes_ != nullptr) explicit_bzero(bytes_.get(), size_);
}

void wipe(std::string& text) noexcept {
  explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace penstock::source::remote
