// A secret text: a key, a token, a password. Only reveal() returns it, so it cannot get into a message or log by accident. Its only other
// operation is comparison for equality, and its bytes are overwritten on destruction. A value; not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace penstock::source::remote {

class secret_text {
 public:
  secret_text() noexcept = default;
  explicit secret_text(std::string_view text);
  // Creates a secret from a text and wipes the text.
  static secret_text taken_from(std::string& text);

  secret_text(const secret_text& other) : secret_text(other.reveal()) {}
  secret_text(secret_text&& other) noexcept;
  secret_text& operator=(secret_text other) noexcept;
  ~secret_text() { clear(); }

  // For code that signs with the secret or sends it. Valid until this object changes or is destroyed.
  [[nodiscard]] std::string_view reveal() const noexcept { return {bytes_.get(), size_}; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  // Takes constant time for texts of equal length.
  [[nodiscard]] bool operator==(const secret_text& other) const noexcept;

 private:
  void clear() noexcept;

  std::unique_ptr<char[]> bytes_;  // not std::string, which leaves a copy of a short text behind when it is moved from
  std::size_t size_ = 0;
};

// Overwrites and clears a text that contained a secret.
void wipe(std::string& text) noexcept;

}  // namespace penstock::source::remote
