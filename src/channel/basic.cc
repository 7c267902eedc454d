#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class basic_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "basic"; }
  [[nodiscard]] bool pulls() const noexcept override { return false; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, sys::peer& /*door*/) const override {
    return std::nullopt;
  }
  status pull(const identity& /*from*/, sys::peer& /*door*/, std::uint64_t /*address*/, std::byte* /*target*/,
              std::size_t /*bytes*/) const override {
    return {errc::internal, "basic: what is sent is not pulled"};
  }
};

}  // namespace

const channel& basic() {
  static const basic_channel the;
  return the;
}

}  // namespace penstock::channel
