// The tensors of one message in transfer, as seen by carriers, for the sender and for the receiver. The pipe owns all of this, and its lock
// guards it unless noted otherwise.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/spin_lock.hpp"
#include "channel/wire.hpp"
#include "core/operation.hpp"
#include "penstock/pipe.hpp"
#include "staging/link.hpp"

namespace penstock::channel {

class carrier;
class incoming;

// Returns true if this is the name of an emulated device.
inline bool is_of_host_device(std::string_view device) noexcept { return device.starts_with("host:"); }

// An operation of the pipe's user. Its completion is reported without the lock, and it may be destroyed by the time that call returns.
class told_operation {
 public:
  virtual void tell_end(io_result outcome) noexcept = 0;

 protected:
  ~told_operation() = default;
};

// The work that a step with the pipe's lock held defers until the lock is released.
struct endings {
  std::vector<std::pair<told_operation*, io_result>> told;    // completed operations
  std::vector<std::pair<incoming*, std::uint64_t>> of_parts;  // number of completed parts, by message
  std::vector<carrier*> go_on;                                // carriers that continue afterwards
  bool copies = false;                                        // copies were submitted; their feeders must start before messages are sent
};

// One carrier's share of one message, divided into parts. Each part completes exactly once: through incoming::parts_ended(), through
// endings::of_parts, or because abandon() counts it. Parts that complete with their targets' streams use incoming::parts_passed().
class delivery {
 public:
  delivery() = default;
  delivery(const delivery&) = delete;
  delivery& operator=(const delivery&) = delete;
  virtual ~delivery() = default;

  // Before the start: the number of parts. Afterwards, with the lock: the number that the peer still has to send, for a carrier that needs
  // the peer to send them.
  [[nodiscard]] virtual std::uint64_t parts() const noexcept = 0;
  // Returns how many of these are work on their targets' streams, which may take any amount of time. Called before the start.
  [[nodiscard]] virtual std::uint64_t parts_on_streams() const noexcept { return 0; }
  // Called without the lock when each tensor of the message has a carrier, before anything starts.
  virtual void all_taken() {}
  // Starts the work that needs the lock, or continues it if there may be room again.
  virtual void ask(endings& /*ended*/) {}
  // Starts the work that does not need the lock. Called once, without the lock. Must not throw.
  virtual void start() noexcept {}
  // Drops the parts that have not started, and returns their number.
  [[nodiscard]] virtual std::uint64_t abandon() noexcept { return 0; }
  // The part of abandon() that runs without the lock; called after it.
  virtual void stop() noexcept {}
  // Called without the lock when all parts have completed.
  virtual void let_go() noexcept {}
};

// A message being received.
class incoming {
 public:
  explicit incoming(core::operation& of) noexcept : operation(of) {}
  incoming(const incoming&) = delete;
  incoming& operator=(const incoming&) = delete;

  core::operation& operation;

  // --- constant once it has started
  std::uint64_t number = 0;
  std::span<const tensor_facts> tensors;
  std::vector<incoming_target> targets;
  std::vector<staging::place> places;  // the targets
  std::uint64_t bytes = 0;             // of all tensors
  // Device targets are written in the order of their streams. All work is on the streams when the starting call returns.
  bool on_streams = false;
  bool is_alone = true;  // when it started, no other message of the pipe was being received or waited to be

  std::vector<carrier*> by;  // by tensor; null: it is in the announcement, or empty

  // Returns the carrier's share, created on first use, which must be before all_deliveries_known(). of: null for tensors in the
  // announcement.
  template <class Delivery, class Make>
  Delivery& delivery_of(const carrier* of, Make make) {
    for (const auto& each : deliveries_) {
      if (each.of == of) return static_cast<Delivery&>(*each.what);
    }
    assert(!deliveries_known_);
    return static_cast<Delivery&>(*deliveries_.emplace_back(of, make()).what);
  }
  // Call when no more deliveries will be added. After this, several threads may iterate over them, and their parts are counted.
  void all_deliveries_known() {
    deliveries_known_ = true;
    for (const auto& each : deliveries_) {
      each.what->all_taken();
      parts_left += each.what->parts();
      arriving_left += each.what->parts() - each.what->parts_on_streams();
    }
  }
  // Adds the parts of a carrier that has taken over while other parts are outstanding.
  void add_parts(std::uint64_t count) noexcept {
    parts_left += count;
    arriving_left += count;
  }
  // Returns null if the carrier has no share of the message.
  template <class Delivery>
  [[nodiscard]] Delivery* find_delivery(const carrier& of) const noexcept {
    for (const auto& each : deliveries_) {
      if (each.of == &of) return static_cast<Delivery*>(each.what.get());
    }
    return nullptr;
  }
  template <class Visit>
  void for_deliveries(Visit visit) const {
    for (const auto& each : deliveries_) visit(*each.what);
  }

  // --- without the lock, any thread
  // Counts completed parts. The message may be destroyed by the time this returns.
  void parts_ended(std::uint64_t count) noexcept {
    if (count > 0 && arriving_left.fetch_sub(count, std::memory_order_acq_rel) == count) all_arrived();
    parts_passed(count);
  }
  // The same for parts on streams. Nothing else waits for these.
  void parts_passed(std::uint64_t count) noexcept {
    if (count > 0 && parts_left.fetch_sub(count, std::memory_order_acq_rel) == count) all_ended();
  }
  // Records the first error, which becomes the message's outcome. Parts that have not started will not start.
  void fail(const status& why) noexcept {
    stopping.store(true);
    const std::lock_guard guard(error_lock_);
    if (error_.ok()) error_ = why;
  }
  [[nodiscard]] status error() noexcept {
    const std::lock_guard guard(error_lock_);
    return error_;
  }
  std::atomic<std::uint64_t> parts_left{1};     // one for the thread that starts it
  std::atomic<std::uint64_t> arriving_left{1};  // all of these except parts on streams
  std::atomic<bool> stopping{false};

 protected:
  ~incoming() = default;
  virtual void all_ended() noexcept = 0;
  virtual void all_arrived() noexcept = 0;

 private:
  struct entry {
    entry(const carrier* by, std::unique_ptr<delivery> made) noexcept : of(by), what(std::move(made)) {}
    const carrier* of;
    std::unique_ptr<delivery> what;
  };
  std::vector<entry> deliveries_;
  bool deliveries_known_ = false;
  spin_lock error_lock_;  // guards error_
  status error_;
};

// One carrier's share of one message that is being sent.
class departure {
 public:
  departure() = default;
  departure(const departure&) = delete;
  departure& operator=(const departure&) = delete;
  virtual ~departure() = default;
  // Returns true if it is not using the sender's memory at present.
  [[nodiscard]] virtual bool at_rest() const noexcept = 0;
};

// A message being sent.
class outgoing {
 public:
  explicit outgoing(core::operation& of) noexcept : operation(of) {}
  outgoing(const outgoing&) = delete;
  outgoing& operator=(const outgoing&) = delete;

  core::operation& operation;

  // --- constant once it is queued
  std::uint64_t number = 0;
  outgoing_message message;
  std::vector<staging::place> places;  // of its tensors
  std::vector<tensor_facts> facts;     // of its tensors
  std::uint64_t tensor_bytes = 0;

  std::vector<std::uint64_t> asked_bytes;  // bytes requested by the peer, by tensor
  // Returns true if no further part of it may start to be sent.
  [[nodiscard]] virtual bool has_ended() const noexcept = 0;

  // Call without the lock before the message is queued, with it afterwards.
  template <class Departure, class Make>
  Departure& departure_of(const carrier& of, Make make) {
    if (auto* const found = find_departure<Departure>(of); found != nullptr) return *found;
    return static_cast<Departure&>(*departures_.emplace_back(&of, make()).second);
  }
  // Returns null if there is none.
  template <class Departure>
  [[nodiscard]] Departure* find_departure(const carrier& of) const noexcept {
    for (const auto& [by, what] : departures_) {
      if (by == &of) return static_cast<Departure*>(what.get());
    }
    return nullptr;
  }
  [[nodiscard]] bool at_rest() const noexcept {
    return std::all_of(departures_.begin(), departures_.end(), [](const auto& each) { return each.second->at_rest(); });
  }

 protected:
  ~outgoing() = default;

 private:
  std::vector<std::pair<const carrier*, std::unique_ptr<departure>>> departures_;
};

}  // namespace penstock::channel
