// One pipe's use of a channel: what it keeps for that, how it begins and stops a tensor, and what its two ends say to each other.
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
#include "core/runtime.hpp"
#include "penstock/pipe.hpp"
#include "penstock/status.hpp"

namespace penstock::channel {

class reactor;
class reactors;

// What the pipes of a context share, and carriers work with.
struct tools {
  std::shared_ptr<core::runtime> runtime;
  pipe_staging* staging = nullptr;  // of the runtime
  std::shared_ptr<sys::peer> door;
  std::shared_ptr<penstock::channel::reactor> reactor;
  unsigned connections = 1;  // of a pipe, at most; of tcp
  std::chrono::milliseconds close_within{};
  std::shared_ptr<penstock::channel::reactors> more_reactors{};  // for further ones
  std::shared_ptr<penstock::channel::fabrics> fabrics{};
};

// Where the tensors of the next message may be put by the other end, before it is sent. Belongs to who waits for that message.
struct posting {
  explicit posting(carrier& of) noexcept : by(of) {}
  posting(const posting&) = delete;
  posting& operator=(const posting&) = delete;
  virtual ~posting() = default;
  // The other end may use it, or has.
  [[nodiscard]] virtual bool is_given() const noexcept = 0;

  carrier& by;
  std::vector<tensor_facts> targets;
  core::operation* told = nullptr;  // that its message is on its way, for who waits there; null: nobody
  void* waits = nullptr;            // the owner's
  std::uint64_t message = 0;        // which the other end puts there; 0: none yet
};

// The pipe, as its carriers see it. Its lock comes before theirs.
class carrier_owner {
 public:
  // Takes a step with the lock, then sends what that has queued and tells those whom it has ended. A step that runs out of memory ends the
  // pipe. Not while the lock, or one that a callback takes, is held.
  template <class Step>
  void with_lock(Step step) noexcept {
    run_step([](void* of, endings& ended) { (*static_cast<Step*>(of))(ended); }, &step);
  }
  [[nodiscard]] virtual std::mutex& lock() noexcept = 0;
  // Who keeps it may call back into a carrier.
  [[nodiscard]] virtual std::weak_ptr<carrier_owner> handle() noexcept = 0;

  // --- do not change
  [[nodiscard]] virtual const std::shared_ptr<connection>& over() const noexcept = 0;
  [[nodiscard]] virtual bool is_local() const noexcept = 0;
  [[nodiscard]] virtual bool has_connected() const noexcept = 0;    // rather than listened
  [[nodiscard]] virtual const identity& peer() const noexcept = 0;  // once the ends know each other

  // --- with the lock
  // Why it is over; ok: it is not.
  [[nodiscard]] virtual status why_over() const = 0;
  // What the other end says still counts.
  [[nodiscard]] virtual bool hears() const noexcept = 0;
  // Queues it. A carrier's own frames have kinds of its own.
  virtual void enqueue(outgoing_frame frame) = 0;
  // Messages that are being received, by number; and those that the other end may ask for. Null: there is none.
  [[nodiscard]] virtual incoming* find_incoming(std::uint64_t number) noexcept = 0;
  [[nodiscard]] virtual outgoing* find_outgoing(std::uint64_t number) noexcept = 0;
  // Those whose tensors may come now.
  [[nodiscard]] virtual std::vector<incoming*> all_begun() = 0;
  // A device that sends something just now, of GPUs or emulated ones. Null: none.
  [[nodiscard]] virtual const staging::link* sending_device(bool emulated) noexcept = 0;
  // It ends with this once what is under way has ended.
  virtual void abandon(incoming& message, const status& why, endings& ended) = 0;
  // The carrier brings none of the tensor, of which nothing has come: its successor does. False: there is none.
  virtual bool hand_over(incoming& message, std::size_t tensor, endings& ended) = 0;
  // It ends with this, and the other end hears so.
  virtual void withdraw(outgoing& message, const status& why, endings& ended) = 0;
  // A carrier uses its memory no more.
  virtual void rests(outgoing& message, endings& ended) = 0;
  // Nothing that arrives counts from here on.
  virtual void cut_off(const status& why, endings& ended) = 0;

  // --- of tensors that are pushed
  // With the lock: which message since the beginning this one will be, if those ahead leave as they are queued; and whether it leaves now.
  [[nodiscard]] virtual std::uint64_t place_in_line(const outgoing& message) const noexcept = 0;
  [[nodiscard]] virtual bool leaves_now(const outgoing& message) const noexcept = 0;
  // With the lock: the other end has all of it, or why not.
  virtual void pushed(outgoing& message, const carrier& by, const status& outcome, endings& ended) = 0;
  // With the lock: all of it has been put where it was to go; or why not, and nothing is written there any more.
  virtual void written(posting& where, const status& outcome, endings& ended) = 0;

 protected:
  ~carrier_owner() = default;
  virtual void run_step(void (*step)(void*, endings&), void* of) noexcept = 0;
};

// Where the body of a frame goes.
struct frame_room {
  std::span<std::byte> at{};  // as long as it; or empty, and nobody wants it
  std::uint64_t most = 0;     // not 0: into memory of the pipe's, if it has at most so many bytes
};

// What the ends have agreed on.
struct agreement {
  bool receives = false;
  bool sends = false;
  bool first_between_devices = false;  // of those by which this end receives
};

class carrier {
 public:
  carrier(const channel& of, const tools& with, carrier_owner& owner) noexcept : of_(of), with_(with), owner_(owner) {}
  carrier(const carrier&) = delete;
  carrier& operator=(const carrier&) = delete;
  virtual ~carrier() = default;
  [[nodiscard]] const channel& of() const noexcept { return of_; }
  // Of its frames, as this end has told the other. Before anything else.
  void set_number(std::uint8_t number) noexcept { number_ = number; }

  // --- how far it goes
  // The ends know each other. With the lock, once.
  virtual void agreed(const agreement& /*on*/) {}
  // Why it brings nothing just now; empty where it does. Any thread.
  [[nodiscard]] virtual std::string refusal() const { return {}; }
  // Between the ends. Any thread.
  [[nodiscard]] virtual unsigned connections() const noexcept { return 1; }

  // --- receiving
  // Takes on a tensor, unless there is a reason why not: of this tensor, whatever others it has brought. Without the lock, before the
  // message begins. May call drivers.
  virtual std::optional<std::string> take(incoming& message, std::size_t tensor) = 0;
  // Its part of a message.
  virtual delivery& delivery_of(incoming& message) = 0;
  // Takes on, from one that names it as its successor, a tensor of a message that has begun. How many parts that is.
  [[nodiscard]] virtual std::uint64_t take_over(incoming& /*message*/, std::size_t /*tensor*/) { return 0; }
  // A message has come, or targets for one, with descriptors that the other end has passed.
  virtual void has_come(const announcement& /*facts*/) {}

  // --- sending
  // Before a message is queued. Without the lock. in_time: its streams have come so far that it may leave. May call drivers.
  virtual void prepare(outgoing& /*message*/, bool /*in_time*/) noexcept {}
  // Its streams have, later.
  virtual void in_time(outgoing& /*message*/) noexcept {}
  // It leaves as the message of this place: puts its tensors where the other end has asked for them to be. What the announcement says of
  // that (frame_head::code); 0: it does not.
  [[nodiscard]] virtual std::uint32_t push(outgoing& /*message*/, std::uint64_t /*place*/, endings& /*ended*/) { return 0; }
  // It leaves and waits to be asked for. told: what the announcement says of its tensors. What this returns goes once that has left.
  virtual std::shared_ptr<void> announce(outgoing& /*message*/, std::vector<tensor_facts>& /*told*/, endings& /*ended*/) { return nullptr; }
  // It has ended: nothing of it begins any more.
  virtual void withdraw(outgoing& /*message*/) {}

  // --- targets that are posted before their message comes
  // Null: it cannot. Without the lock. May call drivers.
  virtual std::unique_ptr<posting> prepare_posting(const std::vector<incoming_target>& /*targets*/) noexcept { return nullptr; }
  // Tells the other end: for the message of this place.
  virtual void post(posting& /*where*/, std::uint64_t /*place*/) {}
  // False: the other end is writing there.
  virtual bool take_back(posting& /*where*/) { return true; }
  // Whether the message that says this of itself (frame_head::code) is put there.
  [[nodiscard]] virtual bool meets(const posting& /*where*/, std::uint32_t /*code*/, std::span<const tensor_facts> /*tensors*/) const {
    return false;
  }
  // Its message has come, or the pipe has ended while the other end writes: written() is told.
  virtual void await(posting& /*where*/) {}
  // Whether poll() finds out what nobody would tell, and does. Any thread, without the lock.
  [[nodiscard]] virtual bool polls() const noexcept { return false; }
  virtual bool poll() noexcept { return false; }

  // --- its own frames, on the thread that reads them
  // With the lock.
  virtual result<frame_room> begins(const frame_head& /*head*/) { return out_of_turn("a frame of a channel that has none"); }
  // Without it.
  virtual status arrived(const frame_head& /*head*/, std::span<const std::byte> /*body*/) { return {}; }

  // --- the end
  // Without the lock, after a step that has named it in endings::go_on.
  virtual void go_on() noexcept {}
  // What was lost before the rest of the pipe; ok: nothing. With the lock.
  [[nodiscard]] virtual status lost_first() const { return {}; }
  // The other end will say nothing more.
  virtual void lost(const status& /*why*/, endings& /*ended*/) {}
  // Lets go of all but what is under way. Without the lock.
  virtual void close() noexcept {}

 protected:
  template <class Step>
  void with_lock(Step step) noexcept {
    owner_.with_lock(std::move(step));
  }
  // The kind in the head of a frame of its own.
  [[nodiscard]] std::uint32_t kind_of(std::uint8_t own) const noexcept { return kind_of_channel(number_, own); }
  void say(std::uint8_t own, std::uint64_t message, std::vector<std::byte> body = {}, std::uint64_t part = 0, std::uint32_t code = 0) {
    const auto size = body.size();
    owner_.enqueue({{kind_of(own), code, message, part, size}, std::move(body), {}, {}});
  }
  // Likewise, with a status as code and body.
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
