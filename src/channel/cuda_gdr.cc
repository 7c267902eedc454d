#include "channel/channel.hpp"
#include "channel/fabrics.hpp"
#include "channel/lines.hpp"

namespace penstock::channel {

namespace {

class cuda_gdr_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cuda_gdr"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return from_device || to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, const means& by) const override {
    if (auto refusal = by.network.refuses(by.local)) return refusal;
    return by.network.refuses_gpus();
  }
  [[nodiscard]] bool over_fabric() const noexcept override { return true; }
  [[nodiscard]] std::string_view successor() const noexcept override { return "cuda_basic"; }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    return std::make_unique<lines>(*this, with, owner);
  }
};

}  // namespace

const channel& cuda_gdr() {
  static const cuda_gdr_channel the;
  return the;
}

}  // namespace penstock::channel
