// One end of a pipe: its queued and current transfers, and what it has learned about the peer. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "channel/carrier.hpp"
#include "channel/connection.hpp"
#include "channel/fabrics.hpp"
#include "channel/proof.hpp"
#include "channel/wire.hpp"
#include "core/resident.hpp"
#include "core/runtime.hpp"
#include "penstock/pipe.hpp"
#include "pipe/operations.hpp"

namespace penstock::pipes {

// Shared by the pipes of a context.
struct pipe_shared : channel::tools {
  std::vector<const channel::channel*> channels{};  // allowed channels, best first
  std::string secret{};                             // for tcp; empty: none
  std::chrono::milliseconds prove_within{};
  std::shared_ptr<const sys::tls_context> tls{};  // for tcp; null: no encryption
};

// Called once for an accepted pipe, without the pipe's lock. The flag is true if the peer has sent its greeting, after TLS and the proof of
// the secret if these are required.
using proof_listener = std::function<void(const std::shared_ptr<session>&, bool)>;

// A message that has arrived. Its facts are constant.
class arrived_message {
 public:
  channel::announcement facts;
  std::vector<std::byte> body;
  std::uint64_t number = 0;
  std::shared_ptr<session> pipe;  // set once the user has it

  // Guarded by the pipe's lock:
  bool received = false;  // receive() was called, or never will be
  bool pushed = false;    // its tensors are written to the posted targets
  status withdrawn;       // set by the sender, with its reason
  status not_received;    // why an attempt to receive it failed

  [[nodiscard]] bool has_tensors_elsewhere() const;
  // Payloads and inline tensors, back to back.
  [[nodiscard]] std::span<const std::byte> contents() const { return std::span(body).subspan(facts.bytes_before_payloads); }
  // Returns the bytes of all its tensors, back to back; empty if they are not inline.
  [[nodiscard]] std::span<const std::byte> in_line_bytes() const;
};

// Classifies the memory of a message part. kind and index identify the part in error messages. Error: bad_memory.
result<staging::place> place_of_part(core::runtime& with, const void* memory, std::uint64_t length, std::string_view kind,
                                     std::size_t index);

class session final : public channel::frame_user,
                      public operation_owner,
                      public channel::carrier_owner,
                      public channel::under_way_teller,
                      public core::resident,
                      public std::enable_shared_from_this<session> {
 public:
  using endings = channel::endings;

  // over: a connected or connecting socket. local: true for a unix socket. url: the URL connected to; empty if the connection was accepted.
  static result<std::shared_ptr<session>> make(const pipe_shared& with, sys::owned_descriptor over, const std::string& url, bool local,
                                               bool connecting, std::unique_ptr<sys::tls_stream> secure, proof_listener when_proven = {});
  session(const pipe_shared& with, const std::string& url, bool local);
  ~session() override;

  [[nodiscard]] std::shared_ptr<core::runtime> runtime() const noexcept { return with_.runtime; }
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  // The caller owns one reference to the result of send, next and receive.
  core::operation* send(const outgoing_message& message, const pipe_operation_options& options, io_callback callback);
  // posted: the targets for the tensors, or null. If the peer pushes into them (arrived_message::pushed), the operation completes when the
  // tensors are in place.
  core::operation* next(incoming_message& into, const pipe_operation_options& options, io_callback callback,
                        std::unique_ptr<channel::posting> posted = nullptr);
  // Returns null if the peer cannot push into these targets.
  std::unique_ptr<channel::posting> prepare_posting(const std::vector<incoming_target>& targets) noexcept;
  // on_streams: see channel::incoming.
  static core::operation* receive(const std::shared_ptr<arrived_message>& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options, io_callback callback, bool on_streams = false);
  void dropped(arrived_message& message) noexcept;
  // Records why the message's tensors were not received; the sender is notified when the message is dropped.
  void no_room_for(arrived_message& message, const status& why) noexcept;
  result<pipe_plan> explain(deadline_clock::time_point until);
  std::vector<channel_stats> stats();
  // Adds the current sends, and the receives whose tensors are being transferred or may be pushed.
  void add_under_way(std::vector<request_info>& to) override;
  [[nodiscard]] std::string obstacle() const override;
  status rest(deadline_clock::time_point /*until*/) override { return {}; }
  void close() noexcept;
  // Immediately closes a connection that has not been handed to a user. Call without a lock.
  void turn_away() noexcept { connection_->abandon(); }
  // Returns true if the peer has sent a valid part of the handshake. Thread-safe.
  [[nodiscard]] bool has_begun_to_prove() const noexcept { return secret_.has_begun.load(); }
  [[nodiscard]] bool has_something_to_say() const noexcept { return connection_->has_something(); }

  void stop(send_operation& op) noexcept override;
  void stop(next_operation& op) noexcept override;
  void stop(receive_operation& op) noexcept override;
  void may_begin(send_operation& op, const status& outcome) noexcept override;
  void may_begin(receive_operation& op, const status& outcome) noexcept override;
  void begin_polling() noexcept override { connection_->begin_polling(); }
  bool poll() noexcept override;
  void end_polling() noexcept override { connection_->end_polling(); }
  void all_ended(receive_operation& op) noexcept override;
  void all_arrived(receive_operation& op) noexcept override;

  result<std::span<std::byte>> begins(const channel::frame_head& head) override;
  status arrived(const channel::frame_head& head) override;
  void lost(const status& why) noexcept override;

  // --- channel::carrier_owner
  [[nodiscard]] std::mutex& lock() noexcept override { return lock_; }
  [[nodiscard]] std::weak_ptr<channel::carrier_owner> handle() noexcept override { return weak_from_this(); }
  [[nodiscard]] const std::shared_ptr<channel::connection>& over() const noexcept override { return connection_; }
  [[nodiscard]] bool is_local() const noexcept override { return local_; }
  [[nodiscard]] bool has_connected() const noexcept override { return connects_; }
  [[nodiscard]] const channel::identity& peer() const noexcept override { return peer_; }
  [[nodiscard]] status why_over() const override { return closed_ ? pipe_closed() : lost_; }
  [[nodiscard]] bool hears() const noexcept override { return !closed_ && !cut_off_; }
  void enqueue(channel::outgoing_frame frame) override;
  [[nodiscard]] channel::incoming* find_incoming(std::uint64_t number) noexcept override;
  [[nodiscard]] channel::outgoing* find_outgoing(std::uint64_t number) noexcept override;
  [[nodiscard]] std::vector<channel::incoming*> all_begun() override;
  [[nodiscard]] const staging::link* sending_device(bool emulated) noexcept override;
  void abandon(channel::incoming& message, const status& why, endings& ended) override;
  bool hand_over(channel::incoming& message, std::size_t tensor, endings& ended) override;
  void withdraw(channel::outgoing& message, const status& why, endings& ended) override;
  void rests(channel::outgoing& message, endings& ended) override;
  void cut_off(const status& why, endings& ended) override;
  [[nodiscard]] std::uint64_t place_in_line(const channel::outgoing& message) const noexcept override;
  [[nodiscard]] bool leaves_now(const channel::outgoing& message) const noexcept override;
  void pushed(channel::outgoing& message, const channel::carrier& by, const status& outcome, endings& ended) override;
  void written(channel::posting& where, const status& outcome, endings& ended) override;

 private:
  // The progress of the handshake. ready: each end knows the other's channels.
  enum class acquaintance : std::uint8_t { none, greeted, ready };
  // Messages announced but not yet received by the user, and their bytes.
  struct credit {
    std::uint32_t messages = 0;
    std::uint64_t bytes = 0;
  };
  // Words in local memory that the peer reads to check that a message is unchanged.
  struct guards {
    std::atomic<std::uint64_t>* take();
    std::deque<std::atomic<std::uint64_t>> all;
    std::vector<std::atomic<std::uint64_t>*> free;
  };
  // The proof required from the peer. Only the reading thread uses it, except has_begun.
  struct admittance {
    std::optional<channel::proof> proof;
    proof_listener when_proven;  // empty once called
    bool is_proven = false;
    std::atomic<bool> has_begun{false};
  };

  void run_step(void (*step)(void*, endings&), void* of) noexcept override;
  void say(channel::frame_kind kind, std::uint64_t message, std::vector<std::byte> body = {}, std::uint64_t part = 0,
           std::uint32_t code = 0);
  void say(channel::frame_kind kind, std::uint64_t message, const status& why);

  static status pipe_closed();
  [[nodiscard]] bool is_for_the_user(const status& why) const noexcept;
  status locate(send_operation& op);

  // --- called with the lock held
  [[nodiscard]] bool is_ready() const noexcept { return known_as_ == acquaintance::ready; }
  static void conclude(pipe_operation& op, io_result outcome, endings& ended);
  void end_all(const status& why, endings& ended);
  // Sending.
  void announce_what_may(endings& ended);
  [[nodiscard]] bool may_announce(const send_operation& op) const;
  void announce(send_operation& op, endings& ended);
  status taken(const channel::frame_head& head, endings& ended);
  void left(std::uint64_t number, endings& ended);
  void end(send_operation& op, io_result outcome, endings& ended);
  // Receiving.
  void post(next_operation& op);
  static bool take_back(const next_operation& op);
  bool take_back_from(const next_operation& op);
  status meets_posting(const channel::frame_head& head, arrived_message& message);
  status announced(const channel::frame_head& head, endings& ended);
  void deliver(endings& ended);
  void withdrawn(const channel::frame_head& head, endings& ended);
  void end(receive_operation& op, io_result outcome, endings& ended);
  // Count tensors that were sent or received, for this pipe and for the engine.
  void count(const channel::channel& by, const channel_stats& more);
  void note_written(const channel::channel& by, const next_operation& op);
  // Handshake.
  status greeted(std::span<const std::byte> body);
  status challenged(std::span<const std::byte> body);
  status proven(std::span<const std::byte> body);
  status refuse(std::string_view to_other, std::string here);
  status reached(std::span<const std::byte> body);
  void tell_carriers(const std::vector<channel::reached_channel>& told);
  [[nodiscard]] const channel::channel* find_channel(std::string_view name) const noexcept;
  [[nodiscard]] channel::carrier* carrier_of(const channel::frame_head& head) const noexcept;
  void make_room_for_successor(receive_operation& op, std::size_t tensor) const;
  [[nodiscard]] channel::carrier* successor_of(const channel::carrier& by, bool from_device, bool to_device) const noexcept;
  [[nodiscard]] channel::carrier* known_way(const std::string& from, const staging::place& to);
  void remember_way(const std::string& from, const staging::place& to, channel::carrier* by);
  void note_route(const std::string& from, const std::string& to, std::vector<channel_choice> channels);

  // --- called without the lock
  [[nodiscard]] std::chrono::milliseconds closes_within() noexcept;
  void close_carriers() noexcept;
  // Before the pipe is handed to the user:
  void make_carriers();
  void say_hello(sys::owned_descriptor passed, std::uint64_t ring_bytes);
  void agree_on_ring(std::uint64_t bytes);
  status start(const std::shared_ptr<session>& self, sys::owned_descriptor over, bool connecting, std::unique_ptr<sys::tls_stream> secure);
  status prepare(receive_operation& op);
  status choose(receive_operation& op, std::size_t tensor);
  status choose_in_order(receive_operation& op, std::size_t tensor);
  status choose_best(receive_operation& op, std::size_t tensor);
  void begin_receive(receive_operation& op) noexcept;
  void begin_parts(receive_operation& op) noexcept;
  [[nodiscard]] status outcome_of(receive_operation& op) noexcept;
  void finish(receive_operation& op, status outcome) noexcept;

  const pipe_shared with_;
  const bool local_;
  const std::string url_;  // empty for an accepted pipe
  bool connects_ = false;
  std::shared_ptr<channel::connection> connection_;
  std::vector<std::unique_ptr<channel::carrier>> carriers_;  // one per entry of with_.channels; null: cannot be used here
  channel::pusher* pusher_ = nullptr;                        // of the carrier that pushes; null: none
  admittance secret_;
  sys::shared_region offered_;   // until the peer has replied
  std::vector<std::byte> body_;  // the arriving frame's body, unless it is written to a tensor

  mutable std::mutex lock_;        // guards the members below
  std::condition_variable known_;  // signalled when the handshake completes or the pipe closes
  acquaintance known_as_ = acquaintance::none;
  bool closed_ = false;
  status lost_;
  bool cut_off_ = false;  // arriving bytes are discarded
  channel::identity peer_;
  std::string peer_name_;                             // the URL connected to, until the peer has identified itself
  std::vector<channel::reached_channel> receiving_;   // per entry of with_.channels; like the next two, constant after the handshake
  std::vector<channel::reached_channel> sending_;     // in the peer's order
  std::vector<channel::carrier*> carriers_of_other_;  // by the peer's channel number; null: not used
  std::map<std::pair<std::string, std::string>, std::vector<channel_choice>> routes_;
  // Key: a device of the peer (or its host), and a local link (null: the local host).
  std::map<std::pair<std::string, const staging::link*>, channel::carrier*> ways_;

  std::uint64_t next_number_ = 1;
  std::uint64_t announced_so_far_ = 0;
  std::deque<send_operation*> queued_;
  std::map<std::uint64_t, send_operation*> announced_;
  credit ahead_;  // for local messages
  guards guards_;

  std::deque<std::shared_ptr<arrived_message>> come_;
  credit untaken_;  // for the peer's messages
  std::uint64_t come_so_far_ = 0;
  std::deque<next_operation*> waiting_;
  std::map<std::uint64_t, receive_operation*> receiving_now_;
  std::map<std::uint64_t, std::weak_ptr<arrived_message>> not_received_;

  std::map<std::string_view, channel_stats> stats_;
};

}  // namespace penstock::pipes
