#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <random>

#include "channel/members.hpp"

namespace penstock::channel {

std::span<const channel* const> all_channels() {
  static const std::array<const channel*, 9> members{&xth(),      &cma(), &cuda_xth(), &cuda_ipc(),  &ucx(),
                                                     &cuda_gdr(), &mpt(), &basic(),    &cuda_basic()};
  return members;
}

std::string_view in_line_name() noexcept { return basic().name(); }

const channel* find_channel(std::string_view name) {
  const auto all = all_channels();
  const auto found = std::find_if(all.begin(), all.end(), [&](const channel* each) { return each->name() == name; });
  return found == all.end() ? nullptr : *found;
}

std::optional<std::string> not_this_process(const identity& from, const identity& here) {
  if (!from.vouched) return "the connection does not prove which process is at the other end";
  if (from.pid == here.pid && from.process_token == here.process_token) return std::nullopt;
  return "the other end is another process";
}

// What the kernel may have against it (ptrace scope, another user, seccomp) shows by trying: ptrace(2), "Ptrace access mode checking".
std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door) {
  if (from.boot_id.empty() || from.boot_id != here.boot_id) return "the other end is on another host";
  if (!from.vouched) return "the connection does not prove which process is at the other end";
  if (from.pid == 0) return "the other process is in a PID namespace that this one does not see";
  std::uint64_t found = 0;
  const auto read = door.read_memory(static_cast<pid_t>(from.pid), from.probe_address, reinterpret_cast<std::byte*>(&found), sizeof(found));
  if (!read.ok()) return fmt::format("this process may not read the other's memory: {}", read.message());
  if (found != from.process_token) return "the process of that number is not the one at the other end";
  return std::nullopt;
}

const identity& own_identity() {
  static std::mutex lock;  // guards what follows
  static identity own;
  const std::lock_guard guard(lock);
  if (own.pid != getpid()) {  // the first call, or the first of a forked child
    std::random_device random;
    own.process_token = std::uint64_t{random()} << 32 | random();
    own.boot_id = sys::boot_id();
    own.probe_address = reinterpret_cast<std::uintptr_t>(&own.process_token);
    own.pid = getpid();
  }
  return own;
}

}  // namespace penstock::channel
