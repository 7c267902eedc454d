// Pipes: receiving.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/pipe_core.hpp"

namespace penstock::core {

namespace {

using channel::frame_kind;

constexpr std::uint64_t least_piece = std::uint64_t{2} << 20;  // of a tensor that is pulled, by one thread
constexpr std::uint64_t most_pieces = 1024;
constexpr std::uint64_t pulled_by_caller = std::uint64_t{64} << 10;

}  // namespace

operation* pipe_core::next(incoming_message& into, const pipe_operation_options& options, io_callback callback) {
  auto* op = new next_operation(shared_from_this(), with_.runtime);
  op->into = &into;
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback));
  op->retain();
  auto problem = or_no_memory([&] { return op->watch_deadline(); });
  with_lock([&](endings& ended) {
    if (problem.ok() && closed_) problem = pipe_closed();
    if (problem.ok() && come_.empty()) problem = lost_;
    if (problem.ok()) {
      op->known = true;
      waiting_.push_back(op);
      deliver(ended);
    } else {
      op->ended = true;
      ended.emplace_back(op, io_result{0, problem});
    }
  });
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

void pipe_core::deliver(endings& ended) {
  while (!come_.empty() && !waiting_.empty()) {
    auto message = std::move(come_.front());
    come_.pop_front();
    auto& op = *waiting_.front();
    waiting_.pop_front();
    op.ended = true;
    const std::uint64_t bytes = message->body.size() - message->facts.bytes_before_payloads;
    --untaken_messages_;
    untaken_bytes_ -= bytes;
    enqueue({{static_cast<std::uint32_t>(frame_kind::credit), 1, 0, bytes, 0}, {}, {}, {}});
    message->pipe = shared_from_this();
    op.come = std::move(message);
    ended.emplace_back(&op, io_result{0, {}});
  }
}

void pipe_core::stop(next_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended) return;
    op.ended = true;
    std::erase(waiting_, &op);
    ended.emplace_back(&op, io_result{0, why});
  });
}

operation* pipe_core::receive(const std::shared_ptr<incoming_core>& message, std::vector<incoming_target> targets,
                              const pipe_operation_options& options, io_callback callback) {
  auto& pipe = *message->pipe;
  auto* op = new receive_operation(message->pipe, pipe.with_.runtime);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback));
  op->retain();
  op->message = message;
  op->targets = std::move(targets);
  pipe.begin_receive(*op);
  if (!op->stop_reason().ok()) pipe.stop(*op);
  return op;
}

namespace {

status check(const receive_operation& op, runtime& with) {
  const auto& tensors = op.message->facts.tensors;
  if (op.targets.size() != tensors.size()) {
    return {errc::invalid_argument, fmt::format("{} targets for {} tensors", op.targets.size(), tensors.size())};
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (op.targets[i].length != tensors[i].length) {
      return {errc::invalid_argument, fmt::format("target {} has {} bytes, its tensor {}", i, op.targets[i].length, tensors[i].length)};
    }
    const auto& target = op.targets[i];
    if (auto wrong = check_host_memory(with, target.memory, target.length, "target", i); !wrong.ok()) return wrong;
  }
  return {};
}

// Where its tensors are pulled, in pieces for several threads.
void cut(receive_operation& op) {
  const auto& tensors = op.message->facts.tensors;
  std::uint64_t total = 0;
  for (const auto& each : tensors) total += each.length;
  const std::uint64_t piece = std::max(least_piece, total / most_pieces);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::uint64_t at = 0; at < tensors[i].length; at += piece) {
      auto& added = op.pieces.emplace_back();
      added.of = &op;
      added.address = tensors[i].address + at;
      added.target = static_cast<std::byte*>(op.targets[i].memory) + at;
      added.bytes = std::min(piece, tensors[i].length - at);
    }
  }
  for (std::size_t i = 0; i + 1 < op.pieces.size(); ++i) op.pieces[i].next_work = &op.pieces[i + 1];
  op.pieces_left.store(op.pieces.size() + 1);  // one for who begins
}

void copy_in_line(const receive_operation& op) {
  const auto& message = *op.message;
  std::uint64_t at = message.facts.bytes_before_payloads;
  for (const auto length : message.facts.payload_lengths) at += length;
  for (std::size_t i = 0; i < op.targets.size(); ++i) {
    if (op.targets[i].length > 0) std::memcpy(op.targets[i].memory, message.body.data() + at, op.targets[i].length);
    at += op.targets[i].length;
  }
}

}  // namespace

void pipe_core::begin_receive(receive_operation& op) noexcept {
  auto& message = *op.message;
  const bool elsewhere = message.has_tensors_elsewhere();
  const auto* const by = elsewhere ? channel::find_channel(message.facts.tensors.front().channel) : nullptr;
  const bool pulls = by != nullptr && by->pulls();
  auto problem = or_no_memory([&]() -> status {
    if (auto wrong = check(op, *with_.runtime); !wrong.ok()) return wrong;
    op.arrived_bytes.resize(op.targets.size());
    if (pulls) cut(op);
    return op.watch_deadline();
  });
  bool goes_on = false;
  with_lock([&](endings& ended) {
    if (problem.ok() && message.received) problem = {errc::invalid_argument, "this message was received before"};
    if (problem.ok()) problem = closed_ ? pipe_closed() : message.withdrawn;
    if (problem.ok() && elsewhere && !pulls) problem = lost_;
    if (!problem.ok()) {
      op.ended = true;
      ended.emplace_back(&op, io_result{0, problem});
      return;
    }
    message.received = true;
    op.known = true;
    op.by = by;
    op.from = peer_;
    if (!elsewhere) {
      copy_in_line(op);
      end(op, {0, {}}, ended);
      return;
    }
    receiving_now_.emplace(message.number, &op);
    not_received_.erase(message.number);
    goes_on = pulls;
    if (pulls) {
      op.retain();  // for the pieces
      return;
    }
    for (const auto& each : op.targets) op.tensors_missing += each.length > 0 ? 1 : 0;
    enqueue({{static_cast<std::uint32_t>(frame_kind::wanted), 0, message.number, 0, 0}, {}, {}, {}});
  });
  if (!goes_on) return;
  std::uint64_t total = 0;
  for (const auto& each : op.targets) total += each.length;
  auto& pieces = op.pieces;
  if (!pieces.empty() &&
      (total <= pulled_by_caller || !with_.runtime->pullers().push(op.list, pieces.front(), pieces.back(), pieces.size()).ok())) {
    for (auto& each : pieces) (void)each.run();
  }
  op.piece_ended();
}

status pipe_core::pull(const receive_operation& op, const pull_work& piece) {
  return op.by->pull(op.from, *with_.door, piece.address, piece.target, piece.bytes);
}

void pipe_core::pulled(receive_operation& op) noexcept {
  auto outcome = or_no_memory([&]() -> status {
    if (auto why = op.stop_reason(); !why.ok()) return why;
    {
      const std::lock_guard guard(op.error_lock);
      if (!op.error.ok()) return op.error;
    }
    // The tensors were still what they were when the last of them had been read.
    std::uint64_t word = 0;
    const auto& facts = op.message->facts;
    const auto read = op.by->pull(op.from, *with_.door, facts.guard_address, reinterpret_cast<std::byte*>(&word), sizeof(word));
    if (read.ok() && word == facts.guard_value) return {};
    return {errc::closed, "the sender has taken the message back"};
  });
  with_lock([&](endings& ended) {
    // Where it is known why, that is what is told.
    if (!outcome.ok() && op.stop_reason().ok()) {
      if (!op.message->withdrawn.ok()) {
        outcome = op.message->withdrawn;
      } else if (!over().ok()) {
        outcome = over();
      }
    }
    tell(frame_kind::taken, op.message->number, outcome);
    end(op, {0, outcome}, ended);
  });
  op.release();
}

void pipe_core::end(receive_operation& op, io_result outcome, endings& ended) {
  if (op.ended) return;
  op.ended = true;
  receiving_now_.erase(op.message->number);
  if (outcome.ok()) {
    for (const auto& each : op.targets) outcome.bytes_done += each.length;
    if (outcome.bytes_done > 0) {
      auto& count = stats_[op.message->facts.tensors.front().channel];
      count.received_tensors += op.targets.size();
      count.received_bytes += outcome.bytes_done;
    }
  }
  ended.emplace_back(&op, std::move(outcome));
}

// Pieces that are being pulled end first: they write to the user's memory.
void pipe_core::stop(receive_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  bool pulls = false;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended) return;
    pulls = op.by->pulls();
    if (pulls) {
      op.stopping.store(true);
      op.retain();
      return;
    }
    connection_->divert(op.message->number);
    tell(frame_kind::taken, op.message->number, why);
    end(op, {0, why}, ended);
  });
  if (!pulls) return;
  while (with_.runtime->pullers().withdraw(op.list) != nullptr) op.piece_ended();
  op.release();
}

void pipe_core::dropped(incoming_core& message) noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& /*ended*/) {
    if (std::exchange(message.received, true) || !message.has_tensors_elsewhere()) return;
    not_received_.erase(message.number);
    tell(frame_kind::taken, message.number, {errc::cancelled, "the message was dropped before it was received"});
  });
}

}  // namespace penstock::core
