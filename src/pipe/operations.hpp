// The three operations of a pipe. What is here belongs to the pipe and is guarded by its lock, unless it says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/spin_lock.hpp"
#include "channel/channel.hpp"
#include "channel/wire.hpp"
#include "core/admission.hpp"
#include "core/file_core.hpp"
#include "core/operation.hpp"
#include "penstock/engine.hpp"
#include "penstock/pipe.hpp"
#include "pipe/imports.hpp"
#include "pipe/line.hpp"
#include "pipe/staging.hpp"
#include "pipe/stream_turn.hpp"
#include "staging/feeder.hpp"
#include "staging/landing.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"

namespace penstock::pipes {

class arrived_message;
class send_operation;
class next_operation;
class receive_operation;
struct read_part;

// A piece of a tensor that is sent, at one of the ends.
template <class Operation>
struct tensor_piece {
  Operation* of = nullptr;
  std::size_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  staging::landing::lease room;  // where it passes through pinned memory; null: it does not
  std::uint32_t wanted = 0;      // the code of the frame that asks for it
  bool in_inbox = false;         // room is a slot of the receiver's inbox, into which it goes
  bool striped = false;          // it may come over any connection
  std::uint32_t number = 0;      // of those of its tensor, where it may
  bool coming = false;           // likewise: over one of them
  staging::copy_task task;

  // The copy between there and memory of a device, whose end the owner is told.
  // flag, value: of the task.
  void copy(const staging::link& via, void* target, const void* source, bool to_device, std::uint32_t* flag = nullptr,
            std::uint32_t value = 0) {
    task.target = target;
    task.source = source;
    task.bytes = bytes;
    task.to_device = to_device;
    task.context = this;
    task.flag = flag;
    task.value = value;
    task.done = [](staging::copy_task& done, status outcome) {
      auto& self = *static_cast<tensor_piece*>(done.context);
      self.of->owner().copied(self, outcome);
    };
    via.feeder().submit(task);
  }
  // Likewise to memory of the host, by a lane.
  void copy(staging::lanes& by, std::byte* target) {
    to_host.of = this;
    to_host.target = target;
    if (!by.push(to_host.list, to_host).ok()) (void)to_host.run();
  }

 private:
  struct host_copy final : staging::work {
    bool run() override {
      std::memcpy(target, of->room.get(), of->bytes);
      of->of->owner().copied(*of, {});
      return true;
    }
    tensor_piece* of = nullptr;
    std::byte* target = nullptr;
    staging::work_list list;
  };
  host_copy to_host;
};
using sent_piece = tensor_piece<send_operation>;         // on its way to the other end
using received_piece = tensor_piece<receive_operation>;  // asked for, or on its way into the target
using sent_by_line = line_piece<send_operation>;
using received_by_line = line_piece<receive_operation>;

// The pipe, as its operations see it. Any thread.
class operation_owner {
 public:
  // An operation was cancelled, or its deadline has passed.
  virtual void stop(send_operation& op) noexcept = 0;
  virtual void stop(next_operation& op) noexcept = 0;
  virtual void stop(receive_operation& op) noexcept = 0;
  // The streams of its tensors have come so far that it may begin, or failed.
  virtual void may_begin(send_operation& op, const status& outcome) noexcept = 0;
  virtual void may_begin(receive_operation& op, const status& outcome) noexcept = 0;
  // There may be room in a landing.
  virtual void go_on(send_operation& op) noexcept = 0;
  virtual void go_on(receive_operation& op) noexcept = 0;
  // A copy from or to memory of a device has ended.
  virtual void copied(sent_piece& piece, const status& outcome) noexcept = 0;
  virtual void copied(received_piece& piece, const status& outcome) noexcept = 0;
  // The fabric does not use the memory of a piece any more.
  virtual void left(sent_by_line& piece, const status& outcome) noexcept = 0;
  virtual void come(received_by_line& piece, const status& outcome) noexcept = 0;
  // Blocks until it is there.
  virtual status read(const receive_operation& op, const read_part& part) = 0;
  // See operation.
  virtual void begin_polling() noexcept = 0;
  virtual bool poll() noexcept = 0;
  virtual void end_polling() noexcept = 0;
  // The last part of it has come, or will not.
  virtual void all_ended(receive_operation& op) noexcept = 0;

 protected:
  ~operation_owner() = default;
};

// Who waits for it polls the pipe.
class polled_operation : public core::operation {
 public:
  polled_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with)
      : core::operation(std::move(with)), owner_(std::move(owner)) {}
  [[nodiscard]] operation_owner& owner() const noexcept { return *owner_; }
  [[nodiscard]] std::chrono::microseconds spin() const noexcept override { return pipe_spin(runtime()); }
  void begin_polling() noexcept override { owner_->begin_polling(); }
  bool poll() noexcept override { return owner_->poll(); }
  void end_polling() noexcept override { owner_->end_polling(); }

 protected:
  ~polled_operation() override = default;

 private:
  const std::shared_ptr<operation_owner> owner_;
};

class pipe_operation : public polled_operation {
 public:
  using polled_operation::polled_operation;
  // Tells that it has ended. Without the pipe's lock. It may be gone on return.
  void tell_end(io_result outcome) noexcept {
    hand_over();
    complete(std::move(outcome));
  }

  const std::int64_t since_ns = core::about_now_ns();
  bool known = false;  // to the pipe, which will end it
  bool ended = false;

 protected:
  ~pipe_operation() override = default;
  // What the user gets with the end.
  virtual void hand_over() noexcept {}
};

// Tells the owner once the streams of its tensors have come so far. It is retained until then.
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

// An operation that waits for room in a landing. It is retained while it does.
template <class Operation>
struct room_waiter final : staging::landing::waiter {
  explicit room_waiter(Operation& owner) noexcept : of(&owner) {}
  bool run() override {
    of->owner().go_on(*of);
    of->release();
    return true;
  }
  // With the pipe's lock: room, or none now (null), and the operation goes on later.
  result<staging::landing::lease> take(staging::landing& from, const staging::link& via) {
    of->retain();
    auto room = from.take(via, *this);
    waits = room && *room == nullptr;
    if (!waits) of->release();
    return room;
  }
  // With the pipe's lock. The operation is kept by somebody else.
  void forget(staging::landing& in) noexcept {
    if (std::exchange(waits, false) && in.forget(*this)) of->release();
  }
  Operation* const of;
  bool waits = false;
};

// The descriptor for a part of a tensor, which the other end has not had yet.
struct exported_part {
  std::size_t tensor;
  std::size_t part;
  sys::owned_descriptor by;
};

// Where the other end may push the tensors of a message.
struct push_targets {
  std::vector<channel::tensor_facts> tensors;
  std::uint32_t slot = 0;  // of the permit
  std::uint32_t turn = 0;
};

class send_operation final : public pipe_operation {
 public:
  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }

  outgoing_message message;
  std::vector<staging::place> places;        // of its tensors
  std::vector<channel::tensor_facts> facts;  // of its tensors
  std::vector<exported_part> exports;        // in order
  stream_turn turn;
  bool ready = true;  // what it sends is there, in the order of its streams
  std::uint64_t number = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t announcement_bytes = 0;  // without what the announcement itself takes
  bool in_line = false;                  // its tensors travel in the announcement
  std::atomic<std::uint64_t>* guard = nullptr;

  std::vector<std::uint64_t> asked_bytes;  // of each tensor, by the other end
  std::list<sent_piece> waiting;           // for room
  std::list<sent_piece> copying;
  std::list<sent_by_line> on_lines;
  room_waiter<send_operation> again{*this};
  [[nodiscard]] bool at_rest() const noexcept { return copying.empty() && on_lines.empty(); }  // nothing that was asked for is under way
  io_result outcome_then;  // once nothing reads its memory, where it has ended before

  // --- what is pushed
  std::shared_ptr<const push_targets> pushes_to;  // null: nothing
  const channel::channel* pushed_by = nullptr;
  std::list<sent_piece> to_push;  // or that have been: with the last of them go mappings
  bool pushing = false;
  status push_error;
};

// Where the tensors of the next message may be pushed, before the other end has been told.
struct posting {
  std::vector<channel::tensor_facts> targets;
  std::vector<exported_part> exports;
};

class next_operation final : public pipe_operation {
 public:
  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }

  incoming_message* into = nullptr;
  std::shared_ptr<arrived_message> come;

  // --- where its tensors may be pushed to their targets
  std::unique_ptr<posting> posted;  // null: they may not
  struct given_permit {
    std::uint32_t slot;
    std::uint32_t turn;
  };
  std::optional<given_permit> permit;  // that the other end may take, or has taken
  io_result outcome_then;              // once the other end cannot write any more

 private:
  void hand_over() noexcept override;
};

// A part of a tensor that is read out of the sender's memory.
struct read_part final : staging::work {
  bool run() override;
  receive_operation* of = nullptr;
  std::uint64_t address = 0;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

// A tensor that is read into memory of a device, which a request of the engine does.
struct engine_part {
  receive_operation* of = nullptr;
  std::shared_ptr<core::file_core> source;
  core::transfer what;
  penstock::operation running;
};

// A tensor that a device copies from the sender's memory.
struct copied_part {
  receive_operation* of = nullptr;
  pipe_imports::held source;  // null: it needs no mapping
  staging::link* via = nullptr;
  staging::copy_task task;
};

class receive_operation final : public pipe_operation {
 public:
  static constexpr std::size_t most_pieces = 12;  // asked for or being copied

  receive_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with, channel::identity peer)
      : pipe_operation(std::move(owner), std::move(with)), from(std::move(peer)) {}
  void end_queued() override { owner().stop(*this); }
  // So many parts have ended. Without the lock, on any thread. It may be gone on return.
  void parts_ended(std::uint64_t count) noexcept;
  // The first error is what it ends with. Without the lock, on any thread.
  void fail(const status& why) noexcept;
  [[nodiscard]] status error() noexcept;
  // The first piece of this tensor that was asked for by a frame with this code.
  [[nodiscard]] std::list<received_piece>::iterator asked_for(std::uint64_t tensor, std::uint32_t wanted) noexcept;
  // The piece of this number that may come over any connection.
  [[nodiscard]] std::list<received_piece>::iterator asked_striped(std::uint64_t tensor, std::uint32_t number) noexcept;
  // The next so many bytes of the tensor at hand, which has this length: those behind them are next.
  void asks_for(std::uint64_t bytes, std::uint64_t length) noexcept {
    next_offset += bytes;
    if (next_offset < length) return;
    ++next_tensor;
    next_offset = 0;
  }
  // Where its bytes arrive.
  [[nodiscard]] std::span<std::byte> room_of(const received_piece& piece) const noexcept {
    return {piece.room != nullptr ? piece.room.get() : static_cast<std::byte*>(targets[piece.tensor].memory) + piece.offset, piece.bytes};
  }

  std::shared_ptr<arrived_message> message;
  std::vector<incoming_target> targets;
  std::vector<staging::place> places;       // of its targets
  std::vector<const channel::channel*> by;  // of its tensors
  stream_turn turn;
  bool begun = false;
  const channel::identity from;
  std::atomic<std::uint64_t> parts_left{0};  // and one for who begins
  std::atomic<bool> stopping{false};         // what has not begun will not

  // --- what is read, and what is copied
  std::vector<read_part> read_parts;
  staging::work_list list;
  std::vector<copied_part> copied_parts;
  std::mutex engine_lock_;  // guards the operations of these
  std::vector<engine_part> engine_parts;

  // --- what is sent
  std::vector<std::size_t> sent_tensors;
  std::size_t next_tensor = 0;      // to be asked for, of those
  std::uint64_t next_offset = 0;    // in that
  std::uint64_t pieces_left = 0;    // that have not ended
  std::list<received_piece> asked;  // the pieces of each tensor in the order in which they will come
  std::list<received_piece> copying;
  std::list<received_by_line> on_lines;
  std::vector<std::shared_ptr<pipe_line>> lines;  // of its tensors; null: not over one
  [[nodiscard]] std::size_t under_way() const noexcept { return asked.size() + copying.size() + on_lines.size(); }
  room_waiter<receive_operation> again{*this};

 private:
  spin_lock error_lock_;  // guards error_
  status error_;
};

}  // namespace penstock::pipes
