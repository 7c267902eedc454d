#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class cma_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cma"; }
  [[nodiscard]] carriage how() const noexcept override { return carriage::read; }
  [[nodiscard]] bool serves(bool from_device, bool /*to_device*/) const noexcept override { return !from_device; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const override {
    return not_readable(from, here, by.door);
  }
};

}  // namespace

const channel& cma() {
  static const cma_channel the;
  return the;
}

}  // namespace penstock::channel
