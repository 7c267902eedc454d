// A channel is a way to move the bytes of tensors between the memory of two processes. To add one, write one file and add one line to the
// registry. A channel declares what pipes need to know, and creates a carrier for each pipe, which does the rest. For each tensor, the
// receiving end of a pipe takes the first channel in the registry that both ends can use, that serves such memory and that does not refuse
// the tensor. Thread-safe.
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

// What a process tells the other end about itself.
struct identity {
  std::string boot_id;              // of its host; empty: unknown
  std::uint64_t process_token = 0;  // drawn when the process first uses pipes; a forked child draws its own
  std::int64_t pid = 0;
  std::uint64_t probe_address = 0;  // the address of the token in the process's memory
  std::uint32_t connections = 0;    // the most that a pipe may have, by its options; 0: the pipe is within one host
  // The kernel confirms that this pid, as this process sees it, is at the other end. Not sent.
  bool vouched = false;
};

class fabrics;
class carrier;
class carrier_owner;
struct tools;

// What a channel may use to find out whether it is usable.
struct means {
  sys::peer& door;
  fabrics& network;
  bool local = false;  // the pipe's ends are on one host
};

class channel {
 public:
  virtual ~channel() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // Returns true if the channel can serve memory of these kinds.
  [[nodiscard]] virtual bool serves(bool from_device, bool to_device) const noexcept = 0;
  // Returns why it cannot move bytes from that process to this one; nothing if it can. May try it out.
  [[nodiscard]] virtual std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const = 0;
  // True if it reads the sender's memory without the sender's help. The bytes count only if the message was unchanged afterwards, and they
  // may be available although the connection was lost.
  [[nodiscard]] virtual bool reads_memory() const noexcept { return false; }
  // True if it can write device memory in stream order (incoming::on_streams): when delivery::start() returns, the stream has everything
  // that it needs.
  [[nodiscard]] virtual bool keeps_stream_order() const noexcept { return false; }
  // True if it uses a network fabric: both ends must be able to, and a user may name it to use it over any network.
  [[nodiscard]] virtual bool over_fabric() const noexcept { return false; }
  // Returns the name of the channel that takes over a tensor of which it has carried nothing; empty: none.
  [[nodiscard]] virtual std::string_view successor() const noexcept { return {}; }
  // Creates the carrier for one pipe, which owns it and must outlive it. Null: the channel is useless for this pipe.
  [[nodiscard]] virtual std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const = 0;
};

// Returns all channels, best first.
std::span<const channel* const> all_channels();
// Returns the channel to which bytes within an announcement are attributed.
const channel& in_line_channel() noexcept;

// Returns the identity of this process.
const identity& own_identity();
// Returns why that process is not this one; nothing if it is.
std::optional<std::string> not_this_process(const identity& from, const identity& here);
// The same; or why this process may not read its own memory with process_vm_readv, by which it detects a withdrawn message: a sandbox or a
// seccomp profile may forbid it. Tries it out.
std::optional<std::string> not_readable_here(const identity& from, const identity& here, sys::peer& door);
// Returns why that process is not one of this host whose memory this process may read; nothing if it is. Tries it out.
std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door);

}  // namespace penstock::channel
