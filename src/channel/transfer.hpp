// The tensors of one message on their way, at the end that sends them and at the one that receives them, as carriers see them. All of it
// belongs to the pipe and is guarded by its lock, unless it says otherwise.
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

// A device of such a name is emulated.
inline bool is_of_host_device(std::string_view device) noexcept { return device.starts_with("host:"); }

// An operation of the pipe's user, who is told its end without the lock. It may be gone on return.
class told_operation {
 public:
  virtual void tell_end(io_result outcome) noexcept = 0;

 protected:
  ~told_operation() = default;
};

// What a step with the pipe's lock leaves to be done without it.
struct endings {
  std::vector<std::pair<told_operation*, io_result>> told;    // operations that have ended
  std::vector<std::pair<incoming*, std::uint64_t>> of_parts;  // how many parts of these have
  std::vector<carrier*> go_on;                                // carriers that have something to do then
  bool copies = false;                                        // some have been submitted to feeders, and have to be ahead of what is said
};

// What one carrier brings of one message, in parts, of which each ends exactly once: by incoming::parts_ended(), by endings::of_parts, or
// because abandon() counts it; those that end with the streams of their targets by incoming::parts_passed().
class delivery {
 public:
  delivery() = default;
  delivery(const delivery&) = delete;
  delivery& operator=(const delivery&) = delete;
  virtual ~delivery() = default;

  // Before it begins: how many there are. With the lock: how many the other end still has to send, of a carrier that needs it for that.
  [[nodiscard]] virtual std::uint64_t parts() const noexcept = 0;
  // How many of these are work on the streams of their targets, which may be held for any time. Before it begins.
  [[nodiscard]] virtual std::uint64_t parts_on_streams() const noexcept { return 0; }
  // Each tensor of the message has its carrier. Without the lock, before anything begins.
  virtual void all_taken() {}
  // Begins, or goes on where there may be room again, what needs the lock.
  virtual void ask(endings& /*ended*/) {}
  // Begins what needs none. Without the lock, once. Must not let an exception out.
  virtual void start() noexcept {}
  // What has not begun will not. How many parts that is.
  [[nodiscard]] virtual std::uint64_t abandon() noexcept { return 0; }
  // Likewise without the lock, behind abandon().
  virtual void stop() noexcept {}
  // All parts have ended. Without the lock.
  virtual void let_go() noexcept {}
};

// At the end that receives.
class incoming {
 public:
  explicit incoming(core::operation& of) noexcept : operation(of) {}
  incoming(const incoming&) = delete;
  incoming& operator=(const incoming&) = delete;

  core::operation& operation;

  // --- do not change once it has begun
  std::uint64_t number = 0;
  std::span<const tensor_facts> tensors;
  std::vector<incoming_target> targets;
  std::vector<staging::place> places;  // of its targets
  std::uint64_t bytes = 0;             // of all tensors
  // Targets in memory of devices are written in the order of their streams, which have it all when the call that begins this returns.
  bool on_streams = false;

  std::vector<carrier*> by;  // of its tensors; null: it is in line, or empty

  // The carrier's part of it, made when it is first asked for: before all are known. of: null for what is in line.
  template <class Delivery, class Make>
  Delivery& delivery_of(const carrier* of, Make make) {
    for (const auto& each : deliveries_) {
      if (each.of == of) return static_cast<Delivery&>(*each.what);
    }
    assert(!deliveries_known_);
    return static_cast<Delivery&>(*deliveries_.emplace_back(of, make()).what);
  }
  // From here on there are no more, so that several threads may go through them, and their parts are counted.
  void all_deliveries_known() {
    deliveries_known_ = true;
    for (const auto& each : deliveries_) {
      each.what->all_taken();
      parts_left += each.what->parts();
      arriving_left += each.what->parts() - each.what->parts_on_streams();
    }
  }
  // Of a carrier that has taken over, while others are left.
  void add_parts(std::uint64_t count) noexcept {
    parts_left += count;
    arriving_left += count;
  }
  // Null: it has none of it.
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
  // So many parts have ended. It may be gone on return.
  void parts_ended(std::uint64_t count) noexcept {
    if (count > 0 && arriving_left.fetch_sub(count, std::memory_order_acq_rel) == count) all_arrived();
    parts_passed(count);
  }
  // Likewise of those on streams, for which nothing else waits.
  void parts_passed(std::uint64_t count) noexcept {
    if (count > 0 && parts_left.fetch_sub(count, std::memory_order_acq_rel) == count) all_ended();
  }
  // The first error is what it ends with; what has not begun will not.
  void fail(const status& why) noexcept {
    stopping.store(true);
    const std::lock_guard guard(error_lock_);
    if (error_.ok()) error_ = why;
  }
  [[nodiscard]] status error() noexcept {
    const std::lock_guard guard(error_lock_);
    return error_;
  }
  std::atomic<std::uint64_t> parts_left{1};     // one for who begins
  std::atomic<std::uint64_t> arriving_left{1};  // of these, all but those on streams
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

// What one carrier has to do with one message that is sent.
class departure {
 public:
  departure() = default;
  departure(const departure&) = delete;
  departure& operator=(const departure&) = delete;
  virtual ~departure() = default;
  // It uses nothing of the sender's memory just now.
  [[nodiscard]] virtual bool at_rest() const noexcept = 0;
};

// At the end that sends.
class outgoing {
 public:
  explicit outgoing(core::operation& of) noexcept : operation(of) {}
  outgoing(const outgoing&) = delete;
  outgoing& operator=(const outgoing&) = delete;

  core::operation& operation;

  // --- do not change once it is queued
  std::uint64_t number = 0;
  outgoing_message message;
  std::vector<staging::place> places;  // of its tensors
  std::vector<tensor_facts> facts;     // likewise
  std::uint64_t tensor_bytes = 0;

  std::vector<std::uint64_t> asked_bytes;  // of each tensor, by the other end
  // Nothing of it may begin to leave any more.
  [[nodiscard]] virtual bool has_ended() const noexcept = 0;

  // Without the lock before it is queued, with it afterwards.
  template <class Departure, class Make>
  Departure& departure_of(const carrier& of, Make make) {
    if (auto* const found = find_departure<Departure>(of); found != nullptr) return *found;
    return static_cast<Departure&>(*departures_.emplace_back(&of, make()).second);
  }
  // Null: there is none.
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
