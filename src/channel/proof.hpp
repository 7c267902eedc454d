// How the two ends of a connection show each other that they know one secret, which never travels: each draws a challenge, and answers with
// an HMAC-SHA256 of both and of which end it is. What travels afterwards is neither signed nor encrypted. For one thread at a time.
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
  // To be sent first.
  [[nodiscard]] std::vector<std::byte> challenge() const { return {own_.begin(), own_.end()}; }
  // The other end's. Once.
  status challenged(std::span<const std::byte> by);
  [[nodiscard]] bool has_both() const noexcept { return challenged_; }
  // Of this end, once both challenges are there.
  [[nodiscard]] result<std::vector<std::byte>> answer() const;
  // permission_denied: the other end does not know the secret.
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
