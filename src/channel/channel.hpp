// A way for the bytes of tensors between memory of two processes. A channel is one file, and one line in the registry; the receiving end of
// a pipe takes for each tensor, of those that both ends may use, the first in the registry that is for such memory and that it does not
// refuse. Thread-safe.
#pragma once

#include <cstdint>
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

// How a channel carries bytes.
// read: the receiver's threads read the sender's host memory, into host memory or into slabs on their way to a device. copy: its device
// copies from the sender's memory, at the sender's address. map: likewise, where the memory has been mapped into the receiver's process.
// fabric: the sender's network card sends them into the receiver's memory, a piece at a time as the receiver asks for them.
// send: the sender sends them, a piece at a time as the receiver asks for them, over the pipe's connection or into the receiver's inbox.
// stripe: likewise, each piece over whichever of several connections has least to do.
enum class carriage : std::uint8_t { read, copy, map, fabric, send, stripe };
constexpr bool comes_in_pieces(carriage how) noexcept {
  return how == carriage::fabric || how == carriage::send || how == carriage::stripe;
}

class fabrics;

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
  [[nodiscard]] virtual carriage how() const noexcept = 0;
  // Whether it is for memory of these kinds at all.
  [[nodiscard]] virtual bool serves(bool from_device, bool to_device) const noexcept = 0;
  // Why it cannot bring bytes of that process to this one; nothing when it can. May try.
  [[nodiscard]] virtual std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const = 0;
};

// All that there are, best first.
std::span<const channel* const> all_channels();
// What travels with an announcement counts as carried by the channel of this name.
std::string_view in_line_name() noexcept;
// Null: there is none of that name.
const channel* find_channel(std::string_view name);

// This process.
const identity& own_identity();
// Why that process is not this one; nothing when it is.
std::optional<std::string> not_this_process(const identity& from, const identity& here);
// Why that process is none of this host whose memory this one may read; nothing when it is. Tries.
std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door);

}  // namespace penstock::channel
