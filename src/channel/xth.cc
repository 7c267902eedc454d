#include "channel/channel.hpp"
#include "channel/reading.hpp"

namespace penstock::channel {

namespace {

// Copies through the kernel, so that memory freed by the sender causes an error instead of a crash.
class xth_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "xth"; }
  [[nodiscard]] bool serves(bool from_device, bool /*to_device*/) const noexcept override { return !from_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const override {
    return not_readable_here(from, here, by.door);
  }
  [[nodiscard]] bool reads_memory() const noexcept override { return true; }
  [[nodiscard]] bool keeps_stream_order() const noexcept override { return true; }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    return std::make_unique<reading>(*this, with, owner);
  }
};

}  // namespace

const channel& xth() {
  static const xth_channel the;
  return the;
}

}  // namespace penstock::channel
