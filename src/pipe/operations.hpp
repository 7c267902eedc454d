// The three operations of a pipe. The pipe owns them, and its lock guards them unless noted otherwise.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "channel/carrier.hpp"
#include "channel/stream_turn.hpp"
#include "channel/transfer.hpp"
#include "core/operation.hpp"
#include "core/request/admission.hpp"
#include "penstock/engine.hpp"
#include "penstock/pipe.hpp"
#include "pipe/gathered.hpp"

namespace penstock::pipes {

class arrived_message;
class send_operation;
class next_operation;
class receive_operation;

// The pipe, as seen by its operations. Thread-safe.
class operation_owner {
 public:
  // Called when an operation is cancelled or its deadline has passed.
  virtual void stop(send_operation& op) noexcept = 0;
  virtual void stop(next_operation& op) noexcept = 0;
  virtual void stop(receive_operation& op) noexcept = 0;
  // Called when the streams of its tensors have reached the operation, so that it may start, or with an error.
  virtual void may_begin(send_operation& op, const status& outcome) noexcept = 0;
  virtual void may_begin(receive_operation& op, const status& outcome) noexcept = 0;
  // See core::operation.
  virtual void begin_polling() noexcept = 0;
  virtual bool poll() noexcept = 0;
  virtual void end_polling() noexcept = 0;
  // Called when the last part has completed, or has arrived.
  virtual void all_ended(receive_operation& op) noexcept = 0;
  virtual void all_arrived(receive_operation& op) noexcept = 0;

 protected:
  ~operation_owner() = default;
};

// An operation whose waiting thread polls the pipe.
class polled_operation : public core::operation {
 public:
  polled_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with)
      : core::operation(std::move(with)), owner_(std::move(owner)) {}
  [[nodiscard]] operation_owner& owner() const noexcept { return *owner_; }
  [[nodiscard]] std::chrono::microseconds spin() const noexcept override { return channel::pipe_spin(runtime()); }
  void begin_polling() noexcept override { owner_->begin_polling(); }
  bool poll() noexcept override { return owner_->poll(); }
  void end_polling() noexcept override { owner_->end_polling(); }

 protected:
  ~polled_operation() override = default;

 private:
  const std::shared_ptr<operation_owner> owner_;
};

class pipe_operation : public polled_operation, public channel::told_operation {
 public:
  using polled_operation::polled_operation;
  void tell_end(io_result outcome) noexcept override {
    hand_over();
    complete(std::move(outcome));
  }
  // Called just before the user's callback.
  virtual void end() noexcept = 0;

  const std::int64_t since_ns = core::about_now_ns();

 protected:
  ~pipe_operation() override = default;
  virtual void hand_over() noexcept {}
};

// Calls the owner's may_begin() when the streams of the operation's tensors have reached it. Retains the operation until then.
template <class Operation>
void await_turn(Operation& op, staging::feeders& watched) {
  op.retain();
  const auto begin = [](void* of, const status& outcome) {
    auto& begun = *static_cast<Operation*>(of);
    begun.owner().may_begin(begun, outcome);
    begun.release();
  };
  op.turn.await(watched, begin, &op);
}

class send_operation final : public pipe_operation, public channel::outgoing {
 public:
  // made: not added to the pipe yet. announced: the peer may request its tensors; inline tensors are sent with the announcement.
  // pushed: devices write the tensors into the targets. ending: no more of it starts, but its memory is still in use. ended: the user is
  // notified.
  enum class stage : std::uint8_t { made, queued, announced, pushed, ending, ended };

  send_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with)
      : pipe_operation(std::move(owner), std::move(with)), channel::outgoing(static_cast<core::operation&>(*this)) {}
  void end_queued() override { owner().stop(*this); }
  [[nodiscard]] stage at() const noexcept { return at_; }
  void move_to(stage next) noexcept {
    const bool ends = next == stage::ended || (next == stage::ending && at_ != stage::made);
    const bool leaves = at_ == stage::queued && (next == stage::announced || next == stage::pushed);
    assert(at_ < next && (ends || leaves || (at_ == stage::made && next == stage::queued)));
    at_ = next;
  }
  void end() noexcept override { move_to(stage::ended); }
  [[nodiscard]] bool has_ended() const noexcept override { return at_ >= stage::ending; }

  channel::stream_turn turn;
  bool ready = true;                     // its streams have produced what it sends
  std::uint64_t announcement_bytes = 0;  // excluding the announcement's own overhead
  bool in_line = false;                  // its tensors are sent inside the announcement
  std::atomic<std::uint64_t>* guard = nullptr;
  io_result outcome_then;  // valid while it is ending

 private:
  stage at_ = stage::made;
};

class next_operation final : public pipe_operation {
 public:
  // made: not added to the pipe yet. written: the message has arrived and the peer writes its tensors into the posted targets, even if
  // the pipe has since closed.
  enum class stage : std::uint8_t { made, waiting, written, ended };

  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }
  [[nodiscard]] stage at() const noexcept { return at_; }
  void move_to(stage next) noexcept {
    assert(at_ < next && (next != stage::written || at_ == stage::waiting));
    at_ = next;
  }
  void end() noexcept override { move_to(stage::ended); }

  incoming_message* into = nullptr;
  std::shared_ptr<arrived_message> come;
  std::unique_ptr<channel::posting> posted;  // targets into which the peer may write the tensors; null: none

 private:
  void hand_over() noexcept override;
  stage at_ = stage::made;
};

class receive_operation final : public pipe_operation, public channel::incoming {
 public:
  // made: not added to the pipe yet. waiting: for its streams. begun: its parts are arriving, or it was stopped.
  enum class stage : std::uint8_t { made, waiting, begun, ended };

  receive_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with)
      : pipe_operation(std::move(owner), std::move(with)), channel::incoming(static_cast<core::operation&>(*this)) {}
  void end_queued() override { owner().stop(*this); }
  [[nodiscard]] stage at() const noexcept { return at_; }
  void move_to(stage next) noexcept {
    assert(at_ < next && (next != stage::begun || at_ == stage::waiting) && (next != stage::ended || at_ != stage::waiting));
    at_ = next;
  }
  void end() noexcept override { move_to(stage::ended); }
  // Returns true if some of its parts need the peer.
  [[nodiscard]] bool needs_other_end();
  // Returns true if some parts were read without the peer's help.
  [[nodiscard]] bool reads_memory() const noexcept;

  std::shared_ptr<arrived_message> message;
  channel::stream_turn turn;
  std::unique_ptr<gathered> by_host;  // null: no tensor is staged in host memory

 private:
  void all_ended() noexcept override { owner().all_ended(*this); }
  void all_arrived() noexcept override { owner().all_arrived(*this); }
  stage at_ = stage::made;
};

}  // namespace penstock::pipes
