#include "channel/channel.hpp"
#include "channel/pieces.hpp"

namespace penstock::channel {

namespace {

// Moves bytes through pinned memory at each end whose tensor is in device memory.
class cuda_basic_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cuda_basic"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return from_device || to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& /*from*/, const identity& /*here*/, const means& /*by*/) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    return std::make_unique<pieces>(*this, with, owner);
  }
};

}  // namespace

const channel& cuda_basic() {
  static const cuda_basic_channel the;
  return the;
}

}  // namespace penstock::channel
