// Pipes carry messages with tensors between processes, in both directions and in order.
//
//   // one process
//   auto context = penstock::pipe_context::create(engine);
//   auto listener = context->listen("unix:@trainer");
//   penstock::pipe pipe;
//   listener->accept(pipe).wait();                             // a peer has connected
//   penstock::incoming_message message;
//   pipe.next(message).wait();                                 // lengths and metadata are known: choose the targets
//   message.receive({{target, bytes}}).wait();                 // the bytes have arrived
//
//   // the other
//   auto pipe = context->connect("unix:@trainer");
//   pipe->send({.metadata = "step 3", .tensors = {{data, bytes}}}).wait();
//
// Complete program: examples/pipe.cc.
//
// A message has metadata, payloads (small host data that arrives with the message) and tensors (host or device memory of any size, moved
// from the sender's memory into the receiver's once the receiver has chosen the target). Each tensor's channel is chosen for the memory at
// both ends; explain() reports the channel and why each better one was rejected.
// Device memory is read and written in stream order: after the work already on the stream when you make the call. An operation completes
// when the bytes have arrived; the calling thread and the stream do not wait (receive_on_stream() is the exception: later work on the
// stream sees the bytes). Every operation completes exactly once, in order among operations of its kind, even if the other process dies;
// its memory is not accessed after that.
// Thread-safe: any thread may call anything here. An object must not be in use while it is destroyed or moved.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/engine.hpp"
#include "penstock/facts.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

namespace pipes {
class session;
class server;
class listener;
class arrived_message;
}  // namespace pipes

// Do not change the memory until the send has completed.
struct outgoing_part {
  const void* memory = nullptr;
  std::uint64_t length = 0;  // bytes
  std::string metadata{};    // at most 1 MiB
  void* stream = nullptr;    // CUstream; null: the default stream. Device memory is sent after the work already on this stream
  // For a tensor: the device that the sender prefers as its target, by the receiver's name for it ("cuda:1", "host:0", "host"); empty: no
  // preference. The receiver sees this and decides. At most 64 printable characters, without spaces.
  std::string target_device{};
};
struct outgoing_message {
  std::string metadata{};                 // at most 1 MiB
  std::vector<outgoing_part> payloads{};  // host memory, together at most 64 MiB
  std::vector<outgoing_part> tensors{};
};

struct incoming_payload {
  std::span<const std::byte> bytes;
  std::string_view metadata;
};
struct incoming_tensor {
  std::uint64_t length = 0;  // bytes
  std::string_view metadata;
  std::string_view device;         // the source device, by the sender's name ("cuda:0"), or "host"
  std::string_view target_device;  // outgoing_part::target_device; this device may not exist here
};
struct incoming_target {
  void* memory = nullptr;
  std::uint64_t length = 0;  // bytes: the tensor's length
  void* stream = nullptr;    // CUstream; null: the default stream. Device memory is written after the work already on this stream
};

struct pipe_operation_options {
  deadline_clock::time_point deadline = deadline_clock::time_point::max();
  // True: the callback runs at once, on the thread that completes the operation, instead of on the engine's callback thread, which saves
  // waking a thread. It must not block or wait for another operation, because that operation might need this thread. Ignored by accept.
  bool calls_at_once = false;
};

// A message that has arrived. Its views are valid as long as this object exists. If you destroy it before receive(), the sender is notified
// that the tensors will not be received.
class PENSTOCK_API incoming_message {
 public:
  incoming_message() noexcept = default;  // empty
  explicit incoming_message(std::shared_ptr<pipes::arrived_message> made) noexcept;
  incoming_message(incoming_message&&) noexcept;
  incoming_message& operator=(incoming_message&&) noexcept;
  ~incoming_message();
  [[nodiscard]] std::string_view metadata() const noexcept;
  [[nodiscard]] std::vector<incoming_payload> payloads() const;
  [[nodiscard]] std::vector<incoming_tensor> tensors() const;
  // Receives each tensor into its target, which must have the tensor's length. Call once. Does not block. Errors in the operation:
  // invalid_argument (number or length of the targets), bad_memory, unsupported (no channel connects the tensor's memory to the target),
  // closed (the peer has disconnected; the error message identifies it), cancelled and timed_out (at either end).
  [[nodiscard]] operation receive(std::vector<incoming_target> targets, const pipe_operation_options& options = {},
                                  io_callback callback = {});
  // The same in stream order, without the host. When the call returns, all the work to receive the tensors is queued on each stream after
  // its earlier work; work that you queue later sees the bytes. For targets in host memory, as with receive(), the bytes have arrived only
  // when the operation completes.
  // The operation completes, with the result, when the streams have passed the tensors. If it has already failed when the call returns,
  // some streams may have nothing queued. If a tensor fails later (the peer dies, cancel(), the deadline), the streams continue regardless:
  // its target then contains zeros, its old contents or parts of the tensor, and the operation reports the error. Copies by the device
  // itself do not need the host and cannot be stopped once queued. If the sender has withdrawn the message, they may copy whatever the
  // sender wrote to that memory later; the operation reports that too.
  // Works with xth, cma, cuda_xth and cuda_ipc. Other channels first receive into host memory, at most 1 GiB per message, and the stream
  // waits as long as the peer takes, so set a deadline. Additional errors: unsupported (more than 1 GiB, or the engine is set to a path
  // other than staged).
  [[nodiscard]] operation receive_on_stream(std::vector<incoming_target> targets, const pipe_operation_options& options = {},
                                            io_callback callback = {});
  [[nodiscard]] const std::shared_ptr<pipes::arrived_message>& core() const noexcept { return core_; }

 private:
  void drop() noexcept;
  std::shared_ptr<pipes::arrived_message> core_;
};

// Returns the targets for a message's tensors, or an error if it cannot provide any. Called once, on the callback thread; must not block.
using pipe_room = std::function<result<std::vector<incoming_target>>(const incoming_message&)>;

struct channel_choice {
  std::string name;
  bool chosen = false;
  std::string refusal;  // why it was not chosen; empty if it could be used
};
// How tensors were received from one kind of memory into another.
struct pipe_route {
  std::string from, to;                  // devices, each by the name used at its own end, or "host"
  std::vector<channel_choice> channels;  // best first
};
struct pipe_plan {
  std::string transport;  // "unix", "tcp", or "tls"
  std::string peer;       // "process 4711 of user 1000", as far as known
  // The channels that both ends can use, best first in the receiver's order. Which one is used for a tensor also depends on its memory; the
  // one marked as chosen is for host memory at both ends.
  std::vector<channel_choice> sending;
  std::vector<channel_choice> receiving;
  std::vector<pipe_route> received;  // received so far, by the memory at both ends
  unsigned connections = 1;          // current connections between the ends
};

class PENSTOCK_API pipe {
 public:
  pipe() noexcept = default;  // closed
  explicit pipe(std::shared_ptr<pipes::session> made) noexcept;
  pipe(pipe&&) noexcept;
  pipe& operator=(pipe&&) noexcept;
  ~pipe();  // close()

  // Does not block. Messages arrive in the order of these calls. bytes_done counts tensor bytes. Sending a message with tensors completes
  // when the tensors are in the receiver's memory (when they have been sent, if they total at most 16 KiB); without tensors, it completes
  // when the message has been sent. Errors in the operation: invalid_argument (a length above its limit, an invalid device name),
  // bad_memory, unsupported (a payload in device memory, or no channel), closed, cancelled, timed_out.
  [[nodiscard]] operation send(const outgoing_message& message, const pipe_operation_options& options = {},
                               io_callback callback = {}) const;
  // Completes when the next message has arrived in `message`, which must not be moved before then. Does not block. Errors in the operation:
  // closed (there are no more messages), cancelled, timed_out.
  [[nodiscard]] operation next(incoming_message& message, const pipe_operation_options& options = {}, io_callback callback = {}) const;
  // Both steps in one, posted before the message arrives. Completes when the next message's tensors are in the targets that room returns.
  // Errors: those of next() and incoming_message::receive(), and those that room returns.
  [[nodiscard]] operation receive(incoming_message& message, pipe_room room, const pipe_operation_options& options = {},
                                  io_callback callback = {}) const;
  // The same if you know in advance what will arrive: the fastest way to receive. Targets in device memory whose streams are idle are
  // announced to the sender. Its device may write into them as soon as the message is sent (channel_stats::pushed_tensors). After that,
  // cancel() and the deadline have no effect: the operation completes when nothing more can be written to the targets. Additional errors:
  // invalid_argument (the message has different tensors; you can still receive them from message).
  [[nodiscard]] operation receive(incoming_message& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options = {}, io_callback callback = {}) const;
  // Blocks until both ends have exchanged their capabilities, for at most 10 s or until the given time. Errors: timed_out, and the error
  // that closed the pipe.
  [[nodiscard]] result<pipe_plan> explain() const;
  [[nodiscard]] result<pipe_plan> explain(deadline_clock::time_point until) const;
  [[nodiscard]] std::vector<channel_stats> stats() const;
  // Operations in flight fail with closed. The peer still receives queued data if it accepts the data within pipe_options::close_within.
  // The connection is closed after that, or earlier if the peer closes too.
  void close() noexcept;
  [[nodiscard]] const std::shared_ptr<pipes::session>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<pipes::session> core_;
};

class PENSTOCK_API pipe_listener {
 public:
  pipe_listener() noexcept = default;  // closed
  explicit pipe_listener(std::shared_ptr<pipes::listener> made) noexcept;
  pipe_listener(pipe_listener&&) noexcept;
  pipe_listener& operator=(pipe_listener&&) noexcept;
  ~pipe_listener();  // stops listening; existing pipes continue
  // Returns the URL for connect(), with the chosen port or name.
  [[nodiscard]] std::string url() const;
  // Returns the number of peers that tried to prove that they know the secret and failed.
  [[nodiscard]] std::uint64_t refused() const noexcept;
  // Completes when a peer has connected and finished the handshake; `accepted` then contains the pipe, and must not be moved before then.
  // Connections that close or do not speak the protocol are ignored (health checks, port scanners). Does not block.
  [[nodiscard]] operation accept(pipe& accepted, const pipe_operation_options& options = {}, io_callback callback = {}) const;

 private:
  std::shared_ptr<pipes::listener> core_;
};

// Files in PEM format. For tcp: TLS 1.3, using OpenSSL's libssl.so.3, on all connections of a pipe.
struct pipe_tls {
  std::string certificate{};  // the local certificate, with intermediate certificates; required for a listener
  std::string key{};          // its private key
  // The CAs that sign the peers' certificates. Empty: connect() uses the system's trusted CAs, and a listener does not request a
  // certificate.
  std::string ca{};
  std::string server_name{};  // for connect(): the name in the peer's certificate; empty: the host of the URL
};

struct pipe_options {
  // The channels that may be used, best first; empty: all, fastest first. The receiver's list decides: a tensor uses the first channel in
  // it that supports the memory at both ends and that the sender may use. "basic" alone sends everything over the connection. "ucx" and
  // "cuda_gdr" (UCX) are used automatically between hosts with RDMA; if you name them, also over any other transport that UCX finds, such
  // as tcp. See docs/guides/pipes.md about their safety.
  std::vector<std::string> channels{};
  // For tcp: a secret of at least 16 bytes, the same at both ends. Each end proves that it knows the secret without sending it (HMAC-SHA256
  // over two challenges). The secret keeps strangers out but does not encrypt: without TLS, anyone on the network path can read and change
  // the data.
  std::string secret{};
  // For tcp: connections per pipe, 1 to 16, including the first. The others are opened when the first large tensor is sent, to a port that
  // the accepting end opens only for this pipe (channel "mpt"). The smaller of the two ends' numbers applies.
  unsigned connections = 4;
  // How long a closed pipe keeps sending queued data and waits for the peer to close before it closes the connection; only one second if
  // the peer has never sent anything.
  std::chrono::milliseconds close_within{10'000};
  // For a listener: the time within which a peer must negotiate TLS, prove that it knows the secret, and finish the handshake. If many
  // connect at once, silent or slow peers may be rejected earlier: with 5,000 unknown connections per second and a limit of 1,024
  // descriptors (256 places), a peer 50 ms away is too slow.
  std::chrono::milliseconds prove_within{5'000};
  // For tcp. Both ends must use it, or neither. UCX channels are not encrypted and are not used with it.
  std::optional<pipe_tls> tls{};
};

// The threads and settings that pipes share. Pipes and listeners keep the parts they need alive.
class PENSTOCK_API pipe_context {
 public:
  // Errors: invalid_argument (an unknown or repeated channel, a secret that is too short, an invalid number of connections, a TLS file that
  // cannot be used), unsupported (a secret without libcrypto, TLS without libssl or with UCX channels selected by name), out_of_memory.
  static result<pipe_context> create(const engine& with, const pipe_options& options = {});
  explicit pipe_context(std::shared_ptr<pipes::server> made) noexcept;
  pipe_context(pipe_context&&) noexcept;
  pipe_context& operator=(pipe_context&&) noexcept;
  ~pipe_context();

  // URLs: unix:/path, unix:@name (abstract) or tcp://host:port; "unix:" and port 0 choose a name or port. Unix sockets accept only
  // processes of the same user. tcp accepts peers that know the secret and, with pipe_tls::ca, have a certificate; with neither, it binds
  // only to loopback addresses, where any process on this machine may connect. Only pipe_options::tls encrypts. Errors: invalid_argument,
  // not_found, permission_denied, io (in use).
  [[nodiscard]] result<pipe_listener> listen(const std::string& url) const;
  // Waits for the name lookup, and for tcp at most 100 ms for the connection. Later failures, such as a host that does not respond, are
  // errors of the first operation, with the URL in the message. Errors: invalid_argument, not_found (no such host or path, or no process is
  // listening there), io.
  [[nodiscard]] result<pipe> connect(const std::string& url) const;

 private:
  std::shared_ptr<pipes::server> core_;
};

}  // namespace penstock
