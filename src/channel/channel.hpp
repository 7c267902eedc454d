// A channel is a way to move the bytes of tensors between the memory of two processes. To add one, write one file and add one line to the
// registry. A channel describes itself to pipes and creates a carrier for each pipe; the carrier does the work. For each tensor, the
// receiving end of a pipe uses the first channel in the registry that both ends can use, that supports the memory kinds involved and that
// accepts the tensor. Thread-safe.
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

// What a process sends to the peer about itself.
struct identity {
  std::string boot_id;              // the host's; empty: unknown
  std::uint64_t process_token = 0;  // generated when the process first uses pipes; a forked child has its own
  std::int64_t pid = 0;
  std::uint64_t probe_address = 0;  // the address of the token in the process's memory
  std::uint32_t connections = 0;    // the limit set in the pipe's options; 0: the pipe is within one host
  // The kernel confirms that this pid (in this process's PID namespace) is the peer's. Not sent.
  bool vouched = false;
};

class fabrics;
class carrier;
class carrier_owner;
struct tools;

// What a channel may use to check whether it is usable.
struct means {
  sys::peer& door;
  fabrics& network;
  bool local = false;  // the pipe's ends are on one host
};

class channel {
 public:
  virtual ~channel() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  // Returns true if the channel can move tensors between these kinds of memory.
  [[nodiscard]] virtual bool serves(bool from_device, bool to_device) const noexcept = 0;
  // Returns why it cannot move bytes from that process to this one; nothing if it can. May run a test transfer.
  [[nodiscard]] virtual std::optional<std::string> refuses(const identity& from, const identity& here, const means& by) const = 0;
  // Returns true if the channel reads the sender's memory without the sender's help. The bytes are valid only if the message is still
  // unchanged after the read, and they may be readable even after the connection is lost.
  [[nodiscard]] virtual bool reads_memory() const noexcept { return false; }
  // Returns true if the channel can write device memory in stream order (incoming::on_streams): when delivery::start() returns, all work
  // has been queued on the stream.
  [[nodiscard]] virtual bool keeps_stream_order() const noexcept { return false; }
  // Returns true if the channel uses a network fabric. Both ends must support the fabric; a user may select the channel by name to use it
  // over any network.
  [[nodiscard]] virtual bool over_fabric() const noexcept { return false; }
  // Returns the name of the channel that takes over before any of a tensor has been transferred; empty: none.
  [[nodiscard]] virtual std::string_view successor() const noexcept { return {}; }
  // Creates the carrier for one pipe. The pipe owns the carrier and must outlive it. Null: this pipe cannot use the channel.
  [[nodiscard]] virtual std::unique_ptr<carrier> make(const tools& with, carrier_owner& owner) const = 0;
};

// Returns all channels, best first.
std::span<const channel* const> all_channels();
// Returns the channel to which bytes inside an announcement are attributed.
const channel& in_line_channel() noexcept;

// Returns the identity of this process.
const identity& own_identity();
// Returns nothing if that process is this one, otherwise why it is not.
std::optional<std::string> not_this_process(const identity& from, const identity& here);
// Also checks that this process may read its own memory with process_vm_readv, which it uses to detect a withdrawn message: a sandbox or a
// seccomp profile may forbid the call. Makes a test read.
std::optional<std::string> not_readable_here(const identity& from, const identity& here, sys::peer& door);
// Returns nothing if that process is on this host and this process may read its memory, otherwise why not. Makes a test read.
std::optional<std::string> not_readable(const identity& from, const identity& here, sys::peer& door);

}  // namespace penstock::channel
