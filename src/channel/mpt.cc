#include "channel/members.hpp"

namespace penstock::channel {

namespace {

// One connection is one thread at each end that copies, and one congestion window between them; several are more.
class mpt_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "mpt"; }
  [[nodiscard]] carriage how() const noexcept override { return carriage::stripe; }
  [[nodiscard]] bool serves(bool /*from_device*/, bool /*to_device*/) const noexcept override { return true; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, const means& /*by*/) const override {
    if (here.connections == 0) return "a pipe within one host needs no further connections";
    if (here.connections == 1) return "this end was told to keep to one connection";
    if (from.connections < 2) return "the other end makes no further connections";
    return std::nullopt;
  }
};

}  // namespace

const channel& mpt() {
  static const mpt_channel the;
  return the;
}

}  // namespace penstock::channel
