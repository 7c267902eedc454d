#include "channel/channel.hpp"
#include "channel/fabrics.hpp"
#include "channel/lines.hpp"

namespace penstock::channel {

namespace {

class ucx_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "ucx"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return !from_device && !to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, const means& by) const override {
    return by.network.refuses(by.local);
  }
  [[nodiscard]] bool over_fabric() const noexcept override { return true; }
  [[nodiscard]] std::string_view successor() const noexcept override { return "basic"; }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    return std::make_unique<lines>(*this, with, owner);
  }
};

}  // namespace

const channel& ucx() {
  static const ucx_channel the;
  return the;
}

}  // namespace penstock::channel
