#include "channel/proof.hpp"

#include <algorithm>
#include <string_view>

#include "channel/wire.hpp"

namespace penstock::channel {

result<proof> proof::make(std::string secret, bool connects) {
  const auto own = sys::random_digest();
  if (!own) return own.error();
  return proof(std::move(secret), connects, *own);
}

status proof::challenged(std::span<const std::byte> by) {
  if (by.size() != other_.size() || challenged_) return out_of_turn("a challenge");
  std::copy(by.begin(), by.end(), other_.begin());
  challenged_ = true;
  return {};
}

result<sys::digest> proof::of(bool who_connects) const {
  const std::string_view role = who_connects ? "penstock pipe: who connects" : "penstock pipe: who listens";
  std::vector<std::byte> all;
  for (const char each : role) all.push_back(static_cast<std::byte>(each));
  const auto& first = connects_ ? own_ : other_;
  const auto& second = connects_ ? other_ : own_;
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return sys::hmac_sha256(secret_, all);
}

result<std::vector<std::byte>> proof::answer() const {
  const auto made = of(connects_);
  if (!made) return made.error();
  return std::vector<std::byte>(made->begin(), made->end());
}

status proof::check(std::span<const std::byte> answer_of_other) const {
  const auto right = of(!connects_);
  if (!right) return right.error();
  if (challenged_ && sys::same(*right, answer_of_other)) return {};
  return {errc::permission_denied, "the peer does not know the secret"};
}

}  // namespace penstock::channel
