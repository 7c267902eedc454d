// The three operations of a pipe. What is here belongs to the pipe and is guarded by its lock, unless it says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "channel/channel.hpp"
#include "core/operation.hpp"
#include "penstock/pipe.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class incoming_core;
class send_operation;
class next_operation;
class receive_operation;
struct pull_work;

// The pipe, as its operations see it. Any thread.
class operation_owner {
 public:
  // An operation was cancelled, or its deadline has passed.
  virtual void stop(send_operation& op) noexcept = 0;
  virtual void stop(next_operation& op) noexcept = 0;
  virtual void stop(receive_operation& op) noexcept = 0;
  virtual status pull(const receive_operation& op, const pull_work& piece) = 0;
  // The last piece of it was pulled, or will not be.
  virtual void pulled(receive_operation& op) noexcept = 0;

 protected:
  ~operation_owner() = default;
};

class pipe_operation : public operation {
 public:
  pipe_operation(std::shared_ptr<operation_owner> owner, std::shared_ptr<core::runtime> with)
      : operation(std::move(with)), owner_(std::move(owner)) {}
  // Tells that it has ended. Without the pipe's lock. It may be gone on return.
  void tell_end(io_result outcome) noexcept {
    hand_over();
    complete(std::move(outcome));
  }

  bool known = false;  // to the pipe, which will end it
  bool ended = false;

 protected:
  ~pipe_operation() override = default;
  [[nodiscard]] operation_owner& owner() const noexcept { return *owner_; }
  // What the user gets with the end.
  virtual void hand_over() noexcept {}

 private:
  const std::shared_ptr<operation_owner> owner_;
};

class send_operation final : public pipe_operation {
 public:
  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }

  outgoing_message message;
  std::uint64_t number = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t announcement_bytes = 0;  // without what the announcement itself takes
  bool in_line = false;                  // its tensors travel in the announcement
  std::atomic<std::uint64_t>* guard = nullptr;
  const channel::channel* by = nullptr;
};

class next_operation final : public pipe_operation {
 public:
  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }

  incoming_message* into = nullptr;
  std::shared_ptr<incoming_core> come;

 private:
  void hand_over() noexcept override;
};

// A piece of a tensor that is read out of the sender's memory.
struct pull_work final : staging::work {
  bool run() override;
  receive_operation* of = nullptr;
  std::uint64_t address = 0;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

class receive_operation final : public pipe_operation {
 public:
  using pipe_operation::pipe_operation;
  void end_queued() override { owner().stop(*this); }
  // Without the lock, on any thread.
  void pull(const pull_work& piece) noexcept;
  void piece_ended() noexcept;

  std::shared_ptr<incoming_core> message;
  std::vector<incoming_target> targets;
  std::vector<std::uint64_t> arrived_bytes;  // of each tensor that is sent
  std::uint64_t tensors_missing = 0;         // of those

  std::vector<pull_work> pieces;
  staging::work_list list;
  channel::identity from;
  const channel::channel* by = nullptr;
  std::atomic<std::uint64_t> pieces_left{0};
  std::atomic<bool> stopping{false};
  spin_lock error_lock;  // guards error
  status error;
};

}  // namespace penstock::core
