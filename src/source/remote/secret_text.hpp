// A text that nobody is to see: a key, a token, a password. It has no way into a message or a log but reveal(), it is compared only for
// being equal, and its bytes are overwritten when it goes. A value; one thread.
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
  // The same, and the text that it came in is wiped.
  static secret_text taken_from(std::string& text);

  secret_text(const secret_text& other) : secret_text(other.reveal()) {}
  secret_text(secret_text&& other) noexcept;
  secret_text& operator=(secret_text other) noexcept;
  ~secret_text() { clear(); }

  // For whoever signs with it or sends it. Valid until this changes or goes.
  [[nodiscard]] std::string_view reveal() const noexcept { return {bytes_.get(), size_}; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  // Takes as long wherever they differ.
  [[nodiscard]] bool operator==(const secret_text& other) const noexcept;

 private:
  void clear() noexcept;

  std::unique_ptr<char[]> bytes_;  // not a std::string, which leaves a copy of a short text behind when it is moved from
  std::size_t size_ = 0;
};

// Overwrites a text that held a secret, and empties it.
void wipe(std::string& text) noexcept;

}  // namespace penstock::source::remote
