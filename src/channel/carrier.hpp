// A carrier is a channel as used by one pipe. It keeps the channel's state for that pipe, starts and stops transfers, and exchanges
// messages with the peer's carrier.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "channel/channel.hpp"
#include "channel/connection.hpp"
#include "channel/staging.hpp"
#include "channel/transfer.hpp"
#include "channel/wire.hpp"
#include "core/engine_core.hpp"
#include "penstock/pipe.hpp"
#include "penstock/status.hpp"

namespace penstock::channel {

class reactor;
class reactors;

// Resources that the pipes of a context share and that carriers use.
struct tools {
  std::shared_ptr<core::engine_core> runtime;
  pipe_staging* staging = nullptr;  // owned by the runtime
  std::shared_ptr<sys::peer> door;
  std::shared_ptr<penstock::channel::reactor> reactor;
  unsigned connections = 1;  // the maximum per pipe; tcp only
  std::chrono::milliseconds close_within{};
  std::shared_ptr<penstock::channel::reactors> more_reactors{};  // for further connections
  std::shared_ptr<penstock::channel::fabrics> fabrics{};
};

// Targets into which the peer may write the tensors of the next message before the message itself arrives. Owned by the waiter for that
// message.
struct posting {
  explicit posting(const channel& of) noexcept : by(of) {}
  posting(const posting&) = delete;
  posting& operator=(const posting&) = delete;
  virtual ~posting() = default;
  // --- with the lock held
  // Returns true if the peer may use this posting, or has used it.
  [[nodiscard]] virtual bool is_given() const noexcept = 0;
  // Sends the targets to the peer, for the message with this number.
  virtual void post(std::uint64_t place) = 0;
  // Returns false if the peer is writing to them.
  virtual bool take_back() = 0;
  // Returns true if the message with this frame_head::code and these tensors is pushed into the targets.
  [[nodiscard]] virtual bool meets(std::uint32_t code, std::span<const tensor_facts> tensors) const = 0;
  // Called when its message has arrived, or when the pipe has ended while the peer writes: the pusher then calls written().
  virtual void await() = 0;

  const channel& by;
  std::vector<tensor_facts> targets;
  core::operation* told = nullptr;  // operation whose waiter is notified that the message is on its way; null: none
  void* waits = nullptr;            // owned by the owner
  std::uint64_t message = 0;        // number of the message that the peer writes there; 0: none yet
};

// A carrier's view of its pipe. Take the pipe's lock before a carrier's lock.
class carrier_owner {
 public:
  // Runs a step with the lock held, then sends what it queued and reports the operations that it completed. If a step runs out of memory,
  // the pipe is closed. Do not call while holding the lock or any lock that a callback takes.
  template <class Step>
  void with_lock(Step step) noexcept {
    run_step([](void* of, endings& ended) { (*static_cast<Step*>(of))(ended); }, &step);
  }
  [[nodiscard]] virtual std::mutex& lock() noexcept = 0;
  // The handle's holder may call back into a carrier.
  [[nodiscard]] virtual std::weak_ptr<carrier_owner> handle() noexcept = 0;

  // --- constant
  [[nodiscard]] virtual const std::shared_ptr<connection>& over() const noexcept = 0;
  [[nodiscard]] virtual bool is_local() const noexcept = 0;
  [[nodiscard]] virtual bool has_connected() const noexcept = 0;    // false: this process listened
  [[nodiscard]] virtual const identity& peer() const noexcept = 0;  // valid once the greetings have been exchanged

  // --- with the lock held
  // Returns the reason the pipe is closed, or ok if it is open.
  [[nodiscard]] virtual status why_over() const = 0;
  // Returns true if messages from the peer are still accepted.
  [[nodiscard]] virtual bool hears() const noexcept = 0;
  // Queues a frame. Each carrier defines its own frame kinds.
  virtual void enqueue(outgoing_frame frame) = 0;
  // Look up a message that is being received, or one that the peer may request, by its number. Null: no such message.
  [[nodiscard]] virtual incoming* find_incoming(std::uint64_t number) noexcept = 0;
  [[nodiscard]] virtual outgoing* find_outgoing(std::uint64_t number) noexcept = 0;
  // Returns the messages whose tensors may arrive now.
  [[nodiscard]] virtual std::vector<incoming*> all_begun() = 0;
  // Returns the link of a GPU (or of an emulated device) that is sending now. Null: none.
  [[nodiscard]] virtual const staging::link* sending_device(bool emulated) noexcept = 0;
  // Fails the message with this error once all its transfers in flight have completed.
  virtual void abandon(incoming& message, const status& why, endings& ended) = 0;
  // Hands a tensor to the carrier's fallback before any of it has arrived. Returns false if it has no fallback.
  virtual bool hand_over(incoming& message, std::size_t tensor, endings& ended) = 0;
  // Fails the message with this error and notifies the peer.
  virtual void withdraw(outgoing& message, const status& why, endings& ended) = 0;
  // Called when a carrier no longer uses the message's memory.
  virtual void rests(outgoing& message, endings& ended) = 0;
  // Discards all further input.
  virtual void cut_off(const status& why, endings& ended) = 0;

  // --- for pushed tensors
  // Call with the lock held. Return the number that this message will get if the messages ahead of it are sent in queue order, and whether
  // it can be sent now.
  [[nodiscard]] virtual std::uint64_t place_in_line(const outgoing& message) const noexcept = 0;
  [[nodiscard]] virtual bool leaves_now(const outgoing& message) const noexcept = 0;
  // Call with the lock held when the peer has the whole message or, if the outcome is an error, will not get it.
  virtual void pushed(outgoing& message, const carrier& by, const status& outcome, endings& ended) = 0;
  // Call with the lock held when all tensors are in their targets or the push has failed with this outcome. Nothing is written to the
  // targets after that.
  virtual void written(posting& where, const status& outcome, endings& ended) = 0;

 protected:
  ~carrier_owner() = default;
  virtual void run_step(void (*step)(void*, endings&), void* of) noexcept = 0;
};

// The destination of a frame's body.
struct frame_room {
  std::span<std::byte> at{};  // the same length as the body; empty to discard the body
  std::uint64_t most = 0;     // if not 0: read the body into the pipe's memory if it has at most this many bytes
};

// The result of the negotiation between the two ends.
struct agreement {
  bool receives = false;
  bool sends = false;
  bool first_between_devices = false;  // the receiver's first choice among the channels between devices
};

// Pushes tensors: the sender writes them into targets that the receiver posted before the message arrived. Serves both ends of a pipe.
class pusher {
 public:
  // --- without the lock
  // Returns null if it cannot post the targets. May call drivers.
  virtual std::unique_ptr<posting> prepare_posting(const std::vector<incoming_target>& targets) noexcept = 0;
  // Looks for completed pushes that nothing else reports. Any thread.
  virtual bool poll() noexcept = 0;
  // Called when a queued message's streams have reached it.
  virtual void in_time(outgoing& message) noexcept = 0;
  // --- with the lock held
  // Called when the message is sent with this number: writes its tensors to the targets that the peer has posted. Returns the value for
  // frame_head::code of the announcement; 0: not pushed.
  [[nodiscard]] virtual std::uint32_t push(outgoing& message, std::uint64_t place, endings& ended) = 0;
  // Called when the peer will send nothing more.
  virtual void lost(const status& why, endings& ended) = 0;

 protected:
  ~pusher() = default;
};

class carrier {
 public:
  carrier(const channel& of, const tools& with, carrier_owner& owner) noexcept : of_(of), with_(with), owner_(owner) {}
  carrier(const carrier&) = delete;
  carrier& operator=(const carrier&) = delete;
  virtual ~carrier() = default;
  [[nodiscard]] const channel& of() const noexcept { return of_; }
  // Sets the number of this carrier's frames, as announced to the peer. Call before anything else.
  void set_number(std::uint8_t number) noexcept { number_ = number; }

  // --- range of use
  // Called once with the lock held, after the greetings have been exchanged.
  virtual void agreed(const agreement& /*on*/) {}
  // Returns why it cannot carry anything at present; empty if it can. Any thread.
  [[nodiscard]] virtual std::string refusal() const { return {}; }
  // Returns the number of connections between the ends. Any thread.
  [[nodiscard]] virtual unsigned connections() const noexcept { return 1; }

  // --- receiving
  // Accepts a tensor, or returns why it cannot carry this one; it may still carry others. Called without the lock, before the message
  // starts. May call drivers.
  virtual std::optional<std::string> take(incoming& message, std::size_t tensor) = 0;
  // Returns this carrier's part of a message.
  virtual delivery& delivery_of(incoming& message) = 0;
  // Accepts a tensor of a message that has already started, from a carrier whose fallback this one is. Returns the number of parts.
  [[nodiscard]] virtual std::uint64_t take_over(incoming& /*message*/, std::size_t /*tensor*/) { return 0; }
  // Called when a message, or targets for one, has arrived together with file descriptors.
  virtual void has_come(const announcement& /*facts*/) {}

  // --- sending
  // Called without the lock before a message is queued. in_time: the message's streams have reached it, so it can be sent. May call
  // drivers.
  virtual void prepare(outgoing& /*message*/, bool /*in_time*/) noexcept {}
  // Called when the message is sent and its tensors wait to be requested. told: the tensors' facts in the announcement. The returned object
  // lives until the announcement has been sent.
  virtual std::shared_ptr<void> announce(outgoing& /*message*/, std::vector<tensor_facts>& /*told*/, endings& /*ended*/) { return nullptr; }
  // Called when the message has completed or failed: no further transfers may start.
  virtual void withdraw(outgoing& /*message*/) {}

  // Null: this carrier never pushes.
  [[nodiscard]] virtual pusher* as_pusher() noexcept { return nullptr; }

  // --- the carrier's own frames, on the thread that reads them
  // Called with the lock held.
  virtual result<frame_room> begins(const frame_head& /*head*/) { return out_of_turn("a frame for a channel that uses none"); }
  // Called without the lock.
  virtual status arrived(const frame_head& /*head*/, std::span<const std::byte> /*body*/) { return {}; }

  // --- the end of the pipe
  // Called without the lock after a step that added this carrier to endings::go_on.
  virtual void go_on() noexcept {}
  // Returns the first failure, from before the pipe itself failed; ok: none. Called with the lock held.
  [[nodiscard]] virtual status lost_first() const { return {}; }
  // Releases everything that is not in flight. Called without the lock.
  virtual void close() noexcept {}

 protected:
  template <class Step>
  void with_lock(Step step) noexcept {
    owner_.with_lock(std::move(step));
  }
  // Returns the frame kind to send for one of the carrier's own kinds.
  [[nodiscard]] std::uint32_t kind_of(std::uint8_t own) const noexcept { return kind_of_channel(number_, own); }
  void say(std::uint8_t own, std::uint64_t message, std::vector<std::byte> body = {}, std::uint64_t part = 0, std::uint32_t code = 0) {
    const auto size = body.size();
    owner_.enqueue({{kind_of(own), code, message, part, size}, std::move(body), {}, {}});
  }
  // Like say(), but sends a status in the frame's code and body.
  void say_why(std::uint8_t own, std::uint64_t message, const status& why, std::uint64_t part = 0) {
    say(own, message, encode_text(why.message()), part, code_of(why));
  }

  const channel& of_;
  const tools& with_;
  carrier_owner& owner_;

 private:
  std::uint8_t number_ = 0;
};

}  // namespace penstock::channel
