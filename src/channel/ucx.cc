#include "channel/fabrics.hpp"
#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class ucx_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "ucx"; }
  [[nodiscard]] carriage how() const noexcept override { return carriage::fabric; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return !from_device && !to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, const means& by) const override {
    return by.network.refuses(by.local);
  }
};

}  // namespace

const channel& ucx() {
  static const ucx_channel the;
  return the;
}

}  // namespace penstock::channel
