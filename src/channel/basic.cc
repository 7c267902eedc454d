#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class basic_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "basic"; }
  [[nodiscard]] carriage how() const noexcept override { return carriage::send; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return !from_device && !to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, const means& /*by*/) const override {
    return std::nullopt;
  }
};

}  // namespace

const channel& basic() {
  static const basic_channel the;
  return the;
}

}  // namespace penstock::channel
