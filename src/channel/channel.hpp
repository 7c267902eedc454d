// A way for the bytes of tensors between memory of two processes. A channel is one file, and one line in the registry: it says of itself
// what pipes have to know, and makes for each pipe the carrier that does the rest. The receiving end of a pipe takes for each tensor, of
// those that both ends may use, the first in the registry that is for such memory and that it does not refuse. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// What a process tells of itself.
struct identity {
  std::string boot_id;              // of its host; empty: not known
  std::uint64_t process_token = 0;  // drawn when the process began to use pipes; another in a forked child
  std::int64_t pid = 0;
  std::uint64_t probe_address = 0;  // where its token lies in its memory
  std::uint32_t connections = 0;    // that a pipe may have, as it was told; 0: the pipe is within one host
  // The kernel says that this pid, as this process sees it, is at the other end. Not sent.
  bool vouched = false;
};

class fabrics;
class carrier;
class carrier_owner;
struct tools;

// What a channel may use to find out whether it can be used.
struct means {
  sys::peer& door;
  fabrics& network;
  bool local = false;  // the pipe's ends are on one host
};

class channel {
 public:
  virtual ~channel() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // Whether it is for memory of these kinds at all.
  [[nodiscard]] virtual bool serves(bool from_device, bool to_device) const noexcept = 0;
  // Why it cannot bring bytes of that process to this one; nothing when it can. May try.
  [[nodiscard]] virtual std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const = 0;
  // What it brings is read out of the sender's memory, without the sender's doing: it counts if that was still the message afterwards, and
  // may be had although the connection was lost.
  [[nodiscard]] virtual bool reads_memory() const noexcept { return false; }
  // It can bring bytes into memory of a device in the order of a stream (incoming::on_streams): by the time at which delivery::start()
  // returns, the stream has all that it needs for that.
  [[nodiscard]] virtual bool keeps_stream_order() const noexcept { return false; }
  // It goes over a network's fabric: both ends have to be able to, and a user may name it to have it over any network.
  [[nodiscard]] virtual bool over_fabric() const noexcept { return false; }
  // Who takes a tensor over of which it has brought nothing, by name; empty: nobody.
  [[nodiscard]] virtual std::string_view successor() const noexcept { return {}; }
  // For one pipe, which owns it and outlives it. Null: it is of no use to this one.
  [[nodiscard]] virtual std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const = 0;
};

// All that there are, best first.
std::span<const channel* const> all_channels();
// What travels with an announcement counts as carried by this channel.
const channel& in_line_channel() noexcept;

// This process.
const identity& own_identity();
// Why that process is not this one; nothing when it is.
std::optional<std::string> not_this_process(const identity& from, const identity& here);
// Likewise, or why it may not read its own memory by process_vm_readv, by which it finds out whether a message was taken back: a sandbox or
// a seccomp profile may keep it from all. Tries.
std::optional<std::string> not_readable_here(const identity& from, const identity& here, sys::peer& door);
// Why that process is none of this host whose memory this one may read; nothing when it is. Tries.
std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door);

}  // namespace penstock::channel
