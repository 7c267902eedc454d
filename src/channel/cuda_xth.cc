#include "channel/channel.hpp"
#include "channel/device_copies.hpp"

namespace penstock::channel {

namespace {

// Within one process, the sender's address is the one that the receiver's device needs.
class copying final : public carrier {
 public:
  using carrier::carrier;
  std::optional<std::string> take(incoming& message, std::size_t tensor) override {
    const auto& from = message.tensors[tensor];
    const auto& to = message.places[tensor];
    const auto* const source = reinterpret_cast<const void*>(from.address);
    const auto there = with_.runtime->memory().place_of(source, from.length);
    const bool known = there && there->on_device() && there->emulated() == to.emulated();
    if (!known) return "the sender's memory is not known to this engine";
    to.via->session().allow_copies_from(there->via->session());
    static_cast<device_copies&>(delivery_of(message)).add(tensor, 0, from.length, source);
    return std::nullopt;
  }
  delivery& delivery_of(incoming& message) override {
    return message.delivery_of<device_copies>(this, [&] { return std::make_unique<device_copies>(with_, *owner_.over(), message); });
  }
};

class cuda_xth_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cuda_xth"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return from_device && to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const override {
    return not_readable_here(from, here, by.door);
  }
  [[nodiscard]] bool reads_memory() const noexcept override { return true; }
  [[nodiscard]] bool keeps_stream_order() const noexcept override { return true; }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    return std::make_unique<copying>(*this, with, owner);
  }
};

}  // namespace

const channel& cuda_xth() {
  static const cuda_xth_channel the;
  return the;
}

}  // namespace penstock::channel
