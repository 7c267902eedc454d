#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <random>

#include "channel/channel.hpp"

// The channels, best first, one line each.
// clang-format off
#define PENSTOCK_CHANNELS(declared) \
  declared(xth)        /* from host memory, between pipes of one process: one copy by the receiver's threads */ \
  declared(cma)        /* likewise between processes of one host: the receiver reads the sender's memory (process_vm_readv) */ \
  declared(cuda_xth)   /* between devices in one process: one copy by the receiver's device */ \
  declared(cuda_ipc)   /* between devices of processes of one host: one copy by a device of either end */ \
  declared(ucx)        /* between host memory of any two hosts, over UCX, where there is RDMA or where it is named */ \
  declared(cuda_gdr)   /* likewise from or to memory of GPUs, which the network card reaches by itself (GPUDirect RDMA) */ \
  declared(mpt)        /* over several connections between the same ends, from and to memory of any kind */ \
  declared(basic)      /* over the pipe's own connection: always */ \
  declared(cuda_basic) /* likewise, from or to memory of devices: always */
// clang-format on

namespace penstock::channel {

#define PENSTOCK_DECLARE(name) const channel& name();
PENSTOCK_CHANNELS(PENSTOCK_DECLARE)

std::span<const channel* const> all_channels() {
#define PENSTOCK_ADDRESS(name) &name(),
  static const std::array members{PENSTOCK_CHANNELS(PENSTOCK_ADDRESS)};
  return members;
}

const channel& in_line_channel() noexcept { return basic(); }

std::optional<std::string> not_this_process(const identity& from, const identity& here) {
  if (!from.vouched) return "the connection does not prove which process the peer is";
  if (from.pid == here.pid && from.process_token == here.process_token) return std::nullopt;
  return "the peer is another process";
}

namespace {

// Only trying shows whether the kernel forbids it (ptrace scope, another user, seccomp): ptrace(2), "Ptrace access mode checking".
std::optional<std::string> cannot_read(const identity& from, std::string_view whose, sys::peer& door) {
  std::uint64_t found = 0;
  const auto read = door.read_memory(static_cast<pid_t>(from.pid), from.probe_address, reinterpret_cast<std::byte*>(&found), sizeof(found));
  if (!read.ok()) return fmt::format("this process may not read {} memory: {}", whose, read.message());
  if (found != from.process_token) return "the process with the peer's pid is not the peer";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> not_readable_here(const identity& from, const identity& here, sys::peer& door) {
  if (auto other = not_this_process(from, here)) return other;
  return cannot_read(from, "its own", door);
}

std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door) {
  if (from.boot_id.empty() || from.boot_id != here.boot_id) return "the peer is on another host";
  if (!from.vouched) return "the connection does not prove which process the peer is";
  if (from.pid == 0) return "the peer is in a PID namespace that is not visible to this process";
  return cannot_read(from, "the peer's", door);
}

const identity& own_identity() {
  static std::mutex lock;  // guards the variable below
  static identity own;
  const std::lock_guard guard(lock);
  if (own.pid != getpid()) {  // the first call, or the first in a forked child
    std::random_device random;
    own.process_token = std::uint64_t{random()} << 32 | random();
    own.boot_id = sys::boot_id();
    own.probe_address = reinterpret_cast<std::uintptr_t>(&own.process_token);
    own.pid = getpid();
  }
  return own;
}

}  // namespace penstock::channel
