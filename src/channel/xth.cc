#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class xth_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "xth"; }
  [[nodiscard]] bool pulls() const noexcept override { return true; }
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, sys::peer& /*door*/) const override {
    if (!from.vouched) return "the connection does not prove which process is at the other end";
    if (from.pid == here.pid && from.process_token == here.process_token) return std::nullopt;
    return "the other end is another process";
  }
  // By the kernel, so that memory which the sender has let go of meanwhile is an error and not a crash.
  status pull(const identity& from, sys::peer& door, std::uint64_t address, std::byte* target, std::size_t bytes) const override {
    return door.read_memory(static_cast<pid_t>(from.pid), address, target, bytes);
  }
};

}  // namespace

const channel& xth() {
  static const xth_channel the;
  return the;
}

}  // namespace penstock::channel
