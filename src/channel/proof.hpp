// Lets the two ends of a connection prove to each other that they know the same secret without sending it. Each draws a random challenge
// and replies with an HMAC-SHA256 over both challenges and its role. Later traffic is neither signed nor encrypted. Not thread-safe.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/status.hpp"
#include "sys/secret.hpp"

namespace penstock::channel {

class proof {
 public:
  static constexpr std::size_t bytes = sizeof(sys::digest);
  static constexpr std::size_t least_secret = 16;  // bytes

  static result<proof> make(std::string secret, bool connects);
  // Returns the local challenge. Send it first.
  [[nodiscard]] std::vector<std::byte> challenge() const { return {own_.begin(), own_.end()}; }
  // Sets the peer's challenge. Call once.
  status challenged(std::span<const std::byte> by);
  [[nodiscard]] bool has_both() const noexcept { return challenged_; }
  // Returns the local proof, once both challenges are known.
  [[nodiscard]] result<std::vector<std::byte>> answer() const;
  // Error: permission_denied if the peer does not know the secret.
  [[nodiscard]] status check(std::span<const std::byte> answer_of_other) const;

 private:
  proof(std::string secret, bool connects, const sys::digest& own) : secret_(std::move(secret)), connects_(connects), own_(own) {}
  [[nodiscard]] result<sys::digest> of(bool who_connects) const;

  std::string secret_;
  bool connects_;
  sys::digest own_;
  sys::digest other_{};
  bool challenged_ = false;
};

}  // namespace penstock::channel
