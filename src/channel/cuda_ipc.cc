#include "channel/channel.hpp"
#include "channel/mapping.hpp"

namespace penstock::channel {

namespace {

class cuda_ipc_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cuda_ipc"; }
  [[nodiscard]] bool serves(bool from_device, bool to_device) const noexcept override { return from_device && to_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const override {
    if (!not_this_process(from, here)) return "a process cannot map memory that it has shared itself";
    // The same read access is used to check that a message is unchanged.
    return not_readable(from, here, by.door);
  }
  [[nodiscard]] bool reads_memory() const noexcept override { return true; }
  [[nodiscard]] bool keeps_stream_order() const noexcept override { return true; }
  [[nodiscard]] std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const override {
    if (!owner.is_local()) return nullptr;
    return std::make_unique<mapping>(*this, with, owner);
  }
};

}  // namespace

const channel& cuda_ipc() {
  static const cuda_ipc_channel the;
  return the;
}

}  // namespace penstock::channel
