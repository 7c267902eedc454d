#include <fmt/format.h>

#include "channel/members.hpp"

namespace penstock::channel {

namespace {

class cma_channel final : public channel {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cma"; }
  [[nodiscard]] bool pulls() const noexcept override { return true; }

  // What the kernel may have against it (ptrace scope, another user, seccomp) shows by trying: ptrace(2), "Ptrace access mode checking".
  [[nodiscard]] std::optional<std::string> refuses(const identity& from, const identity& here, sys::peer& door) const override {
    if (from.boot_id.empty() || from.boot_id != here.boot_id) return "the other end is on another host";
    if (!from.vouched) return "the connection does not prove which process is at the other end";
    if (from.pid == 0) return "the other process is in a PID namespace that this one does not see";
    std::uint64_t found = 0;
    const auto read =
        door.read_memory(static_cast<pid_t>(from.pid), from.probe_address, reinterpret_cast<std::byte*>(&found), sizeof(found));
    if (!read.ok()) return fmt::format("this process may not read the other's memory: {}", read.message());
    if (found != from.process_token) return "the process of that number is not the one at the other end";
    return std::nullopt;
  }

  status pull(const identity& from, sys::peer& door, std::uint64_t address, std::byte* target, std::size_t bytes) const override {
    return door.read_memory(static_cast<pid_t>(from.pid), address, target, bytes);
  }
};

}  // namespace

const channel& cma() {
  static const cma_channel the;
  return the;
}

}  // namespace penstock::channel
