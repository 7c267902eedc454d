// Pipes: messages with tensors between processes, in both directions, in order.
//
//   // one process
//   auto context = penstock::pipe_context::create(engine);
//   auto door = context->listen("unix:@trainer");
//   penstock::pipe pipe;
//   door->accept(pipe).wait();                                 // somebody has connected
//   penstock::incoming_message message;
//   pipe.next(message).wait();                                 // lengths and metadata: now make room
//   message.receive({{target, bytes}}).wait();                 // the bytes are there
//
//   // another
//   auto pipe = context->connect("unix:@trainer");
//   pipe->send({.metadata = "step 3", .tensors = {{data, bytes}}}).wait();
//
// A whole program: examples/pipe.cc.
//
// A message has metadata, payloads (small host data, there as soon as the message is) and tensors (memory of any size, of the host or of a
// device, which goes from the sender's memory into the receiver's once the receiver has said where). How a tensor travels is chosen for the
// memory that it goes from and to, and explain() tells it with the reason why each better way was refused.
// Memory of a device is read and written in the order of a stream: after what that stream has when the call is made. The end of an
// operation is told when the bytes are there; the calling thread and the stream never wait (but of receive_on_stream(), behind which work
// of the stream finds the bytes). Every operation ends exactly once, in order of
// its kind, also when the other process dies; its memory is not touched after that. Thread-safe: everything here may be called from any
// thread, except that destroying or moving an object needs it to be otherwise unused.
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

// Memory stays as it is until the send has ended.
struct outgoing_part {
  const void* memory = nullptr;
  std::uint64_t length = 0;  // bytes
  std::string metadata{};    // at most 1 MiB
  void* stream = nullptr;    // CUstream; null: the default stream. Of memory of a device: it is sent after what this stream has now
  // Of a tensor: where the sender would have it, by a name of the receiver's ("cuda:1", "host:0", "host"); empty: the receiver's choice.
  // The receiver is told, and decides. At most 64 bytes, printable and without spaces.
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
  std::string_view device;         // that it comes from, as the sender calls it ("cuda:0"), or "host"
  std::string_view target_device;  // outgoing_part::target_device; whether there is such a device here is not known
};
struct incoming_target {
  void* memory = nullptr;
  std::uint64_t length = 0;  // bytes: the tensor's
  void* stream = nullptr;    // CUstream; null: the default stream. Memory of a device is written after what this stream has now
};

struct pipe_operation_options {
  deadline_clock::time_point deadline = deadline_clock::time_point::max();
  // The callback is called on the thread that ends the operation, at once, and not on the engine's own for callbacks: sooner by the waking
  // of a thread. It must neither block nor wait for another operation: it may be what else would go on. Of an accept it is never called so.
  bool calls_at_once = false;
};

// A message that has come. What it shows stays valid as long as it. Dropping it before receive() tells the sender that nobody will.
class PENSTOCK_API incoming_message {
 public:
  incoming_message() noexcept = default;  // of nothing
  explicit incoming_message(std::shared_ptr<pipes::arrived_message> made) noexcept;
  incoming_message(incoming_message&&) noexcept;
  incoming_message& operator=(incoming_message&&) noexcept;
  ~incoming_message();
  [[nodiscard]] std::string_view metadata() const noexcept;
  [[nodiscard]] std::vector<incoming_payload> payloads() const;
  [[nodiscard]] std::vector<incoming_tensor> tensors() const;
  // Brings each tensor to its target, which is as long as it. Once. Does not block. Errors in the operation: invalid_argument (the number
  // or length of the targets), bad_memory, unsupported (no channel leads from the tensor's memory to the target), closed (the other end has
  // gone; the message says who), cancelled and timed_out (here or there).
  [[nodiscard]] operation receive(std::vector<incoming_target> targets, const pipe_operation_options& options = {},
                                  io_callback callback = {});
  // The same in the order of the targets' streams, without the host: when the call returns, each stream has what it needs to bring its
  // tensors, after the work that was queued before it and before the work that is queued from now on, which finds the bytes. Of targets in
  // memory of the host, as with receive(), only the end tells that they are there.
  // The operation ends when the streams have passed, and tells how it went. An operation that has ended with an error when the call
  // returns may have put nothing onto a stream. Where the tensors fail to come later (the other end dies, cancel(), the deadline) the
  // streams go on all the same: the targets then hold zeros, or what they held, in whole or in part, and the end says why. What is copied
  // by the device itself waits for no host, and cannot be stopped once it is queued; it may also be what the sender wrote there later, if
  // the sender has taken the message back, which the end says too.
  // By xth, cma, cuda_xth and cuda_ipc; other channels bring the tensors into memory of the host first, at most 1 GiB of a message, and the
  // stream waits for them: until then it stands still, as long as the other end takes, so give it a deadline. Errors too: unsupported (more
  // than that; or the engine's options insist on another path than staged).
  [[nodiscard]] operation receive_on_stream(std::vector<incoming_target> targets, const pipe_operation_options& options = {},
                                            io_callback callback = {});
  [[nodiscard]] const std::shared_ptr<pipes::arrived_message>& core() const noexcept { return core_; }

 private:
  void drop() noexcept;
  std::shared_ptr<pipes::arrived_message> core_;
};

// Tells where the tensors of a message go, or why nowhere. Called once, on the thread that calls back; must not block.
using pipe_room = std::function<result<std::vector<incoming_target>>(const incoming_message&)>;

struct channel_choice {
  std::string name;
  bool chosen = false;
  std::string refusal;  // why not; empty where it could be used
};
// How tensors were received from one kind of memory into another.
struct pipe_route {
  std::string from, to;                  // devices, as each end calls its own, or "host"
  std::vector<channel_choice> channels;  // best first
};
struct pipe_plan {
  std::string transport;  // "unix", "tcp", or "tls"
  std::string peer;       // "process 4711 of user 1000", as far as it is known
  // By which the ends could send and receive at all, best first as the receiver of a tensor has them. Which one carries it hangs on its
  // memory too: of those here that serve host memory, as on both ends, the chosen one is marked.
  std::vector<channel_choice> sending;
  std::vector<channel_choice> receiving;
  std::vector<pipe_route> received;  // what has come so far, by the memory at both ends
  unsigned connections = 1;          // between the ends, now
};

class PENSTOCK_API pipe {
 public:
  pipe() noexcept = default;  // closed
  explicit pipe(std::shared_ptr<pipes::session> made) noexcept;
  pipe(pipe&&) noexcept;
  pipe& operator=(pipe&&) noexcept;
  ~pipe();  // close()

  // Does not block; messages arrive in the order of these calls. bytes_done: of tensors. A message with tensors has ended once they are in
  // the receiver's memory (those of up to 16 KiB together: once they have left), one without once it has left.
  // Errors in the operation: invalid_argument (a length above its limit, what is no name of a device), bad_memory, unsupported (a payload
  // in memory of a device, or no channel), closed, cancelled, timed_out.
  [[nodiscard]] operation send(const outgoing_message& message, const pipe_operation_options& options = {},
                               io_callback callback = {}) const;
  // Ends when the next message has come, which is in message then; message must stay where it is until that. Does not block.
  // Errors in the operation: closed (there are no more), cancelled, timed_out.
  [[nodiscard]] operation next(incoming_message& message, const pipe_operation_options& options = {}, io_callback callback = {}) const;
  // Both in one, posted before the message comes: ends when the tensors of the next message are where room says. Errors: those of next()
  // and incoming_message::receive(), and room's own.
  [[nodiscard]] operation receive(incoming_message& message, pipe_room room, const pipe_operation_options& options = {},
                                  io_callback callback = {}) const;
  // The same where it is known what will come: the quickest way to receive. Targets in memory of devices whose streams have nothing to do
  // are told to the sender, whose device may write into them as soon as the message is sent (channel_stats::pushed_tensors). From then on
  // it is too late to cancel, and a deadline does not hold: the operation ends once nothing can be written there any more. Errors too:
  // invalid_argument (the message has other tensors; it can still be received from message).
  [[nodiscard]] operation receive(incoming_message& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options = {}, io_callback callback = {}) const;
  // Blocks until the ends know each other, for 10 s at most, or until then. Errors: timed_out, and those that ended the pipe.
  [[nodiscard]] result<pipe_plan> explain() const;
  [[nodiscard]] result<pipe_plan> explain(deadline_clock::time_point until) const;
  [[nodiscard]] std::vector<channel_stats> stats() const;
  // What is under way ends with closed. The other end still gets what had been queued to leave, if it takes it within
  // pipe_options::close_within; then, or sooner where it closes too, the connection is gone.
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
  ~pipe_listener();  // nobody can connect any more; pipes go on
  // For connect(): with the port or name that was chosen.
  [[nodiscard]] std::string url() const;
  // How many have begun to prove that they know the secret, and did not know it.
  [[nodiscard]] std::uint64_t refused() const noexcept;
  // Ends when the other end of a pipe has connected and greeted; accepted is the pipe then, and must stay where it is until that.
  // Connections that close or say something else do not count (health checks, port scanners). Does not block.
  [[nodiscard]] operation accept(pipe& accepted, const pipe_operation_options& options = {}, io_callback callback = {}) const;

 private:
  std::shared_ptr<pipes::listener> core_;
};

// Files in PEM. Of tcp: TLS 1.3, by OpenSSL's libssl.so.3, for all connections of a pipe.
struct pipe_tls {
  std::string certificate{};  // of this end, with those between it and the authority. Who listens needs one
  std::string key{};          // to it
  // The authorities that sign the certificates of the other ends. Empty: of who connects those that the system trusts; of who listens none,
  // and whoever connects needs no certificate.
  std::string ca{};
  std::string server_name{};  // of who connects: that the certificate is to have; empty: the host of the URL
};

struct pipe_options {
  // The channels that may be used, by name, best first; empty: all, the quickest first. Of a tensor the receiver's decides: its first that
  // leads from the sender's memory to the target, and that the sender may use. "basic" alone sends everything over the connection.
  // "ucx" and "cuda_gdr" (UCX) are used by themselves between hosts with RDMA, and where they are named over whatever UCX finds, tcp too:
  // see docs/guides/python.md on their safety.
  std::vector<std::string> channels{};
  // Of tcp: what both ends must know, at least 16 bytes. Each proves it to the other without sending it (HMAC-SHA256 of two challenges).
  // What travels afterwards is encrypted by TLS alone: without that the secret keeps strangers out, and not who can read or change what
  // passes.
  std::string secret{};
  // Of a tcp pipe, 1 to 16, with its own: the others are made when its first large tensor is on its way, to a port that the end which has
  // accepted opens at that time for this pipe alone (channel "mpt"). As many as the end that wants fewer says.
  unsigned connections = 4;
  // How long a pipe that is closed goes on sending what had been queued, and waits for the other end to close too. Then it lets go of the
  // connection, whatever the other end does; after a second where that has never spoken.
  std::chrono::milliseconds close_within{10'000};
  // Of a listener: how long whoever connects has to greet, to prove that it knows the secret, and to agree on TLS. Those who say nothing,
  // or are slow, may be turned away sooner where many come: beside 5,000 strangers a second, at a limit of 1,024 descriptors (256 places),
  // an end that is 50 ms away is too slow.
  std::chrono::milliseconds prove_within{5'000};
  // Of tcp. Both ends have it, or neither. The channels of UCX are not used with it, since they are not encrypted.
  std::optional<pipe_tls> tls{};
};

// Threads and settings that pipes share. Pipes and listeners keep what they need of it.
class PENSTOCK_API pipe_context {
 public:
  // Errors: invalid_argument (no such channel, one named twice, a secret that is too short, a number of connections that there cannot be),
  // unsupported (a secret, and no libcrypto; TLS, and no libssl, or channels of UCX's that are named), out_of_memory; of TLS
  // invalid_argument too, for a file that cannot be used.
  static result<pipe_context> create(const engine& with, const pipe_options& options = {});
  explicit pipe_context(std::shared_ptr<pipes::server> made) noexcept;
  pipe_context(pipe_context&&) noexcept;
  pipe_context& operator=(pipe_context&&) noexcept;
  ~pipe_context();

  // unix:/path, unix:@name (abstract) or tcp://host:port; "unix:" and port 0 choose a name and a port. Of unix sockets only processes of
  // this user are let in. Over tcp who knows the secret is let in, and, with pipe_tls::ca, who has a certificate; without both it binds to
  // loopback addresses only, where anybody of this machine may connect. Nothing is encrypted but with pipe_options::tls. Errors:
  // invalid_argument, not_found, permission_denied, io (in use).
  [[nodiscard]] result<pipe_listener> listen(const std::string& url) const;
  // Waits for the name service, and over tcp for 100 ms at most until the connection is there. What fails later, as with a host that does
  // not answer, the first operation tells, with the URL. Errors: invalid_argument, not_found (no such host or path; nobody listens there),
  // io.
  [[nodiscard]] result<pipe> connect(const std::string& url) const;

 private:
  std::shared_ptr<pipes::server> core_;
};

}  // namespace penstock
