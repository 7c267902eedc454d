// Pipes: arriving messages, and the operations that wait for them.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;

core::operation* session::next(incoming_message& into, const pipe_operation_options& options, io_callback callback,
                               std::unique_ptr<channel::posting> posted) {
  auto* op = new next_operation(shared_from_this(), with_.runtime);
  op->into = &into;
  op->posted = std::move(posted);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback), options.calls_at_once);
  op->retain();
  auto problem = or_no_memory([&] { return op->watch_deadline(); });
  bool known = false;
  with_lock([&](endings& ended) {
    if (problem.ok() && closed_) problem = pipe_closed();
    if (problem.ok() && come_.empty()) problem = lost_;
    if (problem.ok()) {
      if (op->posted != nullptr) op->posted->waits = op;
      waiting_.push_back(op);
      op->move_to(next_operation::stage::waiting);
      known = true;
      post(*op);
      deliver(ended);
    } else {
      conclude(*op, {0, problem}, ended);
      known = true;
    }
  });
  if (!known) {  // the step ran out of memory
    op->end();
    op->tell_end({0, no_memory()});
  }
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

status session::announced(const channel::frame_head& head, endings& ended) {
  const auto wrong = [](std::string_view what) { return status(errc::io, fmt::format("the peer sent {}", what)); };
  auto message = std::make_shared<arrived_message>();
  auto facts = channel::decode_announcement(body_);
  if (!facts) return facts.error();
  message->facts = *std::move(facts);
  message->number = head.message;
  message->body = std::move(body_);
  body_ = {};
  const std::uint64_t bytes = message->contents().size();
  const bool first = untaken_.messages == 0;
  if (!first && (untaken_.messages >= limits::announced_messages || untaken_.bytes + bytes > limits::announced_bytes)) {
    return wrong("more messages than it has credit for");
  }
  const auto& tensors = message->facts.tensors;
  if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& each) { return each.in_line != tensors.front().in_line; })) {
    return wrong("a message with only some of its tensors inline");
  }
  for (const auto& each : carriers_) {
    if (each != nullptr) each->has_come(message->facts);
  }
  ++come_so_far_;
  if (auto broken = meets_posting(head, *message); !broken.ok()) return broken;
  ++untaken_.messages;
  untaken_.bytes += bytes;
  if (message->has_tensors_elsewhere() && !message->pushed) not_received_.emplace(message->number, message);
  come_.push_back(std::move(message));
  deliver(ended);
  return {};
}

void session::deliver(endings& ended) {
  while (!come_.empty() && !waiting_.empty()) {
    auto message = std::move(come_.front());
    come_.pop_front();
    auto& op = *waiting_.front();
    waiting_.pop_front();
    const std::uint64_t bytes = message->contents().size();
    --untaken_.messages;
    untaken_.bytes -= bytes;
    say(frame_kind::credit, 0, {}, bytes, 1);
    message->pipe = shared_from_this();
    op.come = std::move(message);
    if (op.come->pushed) {
      op.move_to(next_operation::stage::written);
      op.posted->message = op.come->number;
      op.posted->await();
      if (op.posted->told != nullptr) op.posted->told->comes_soon();
    } else {
      conclude(op, {0, {}}, ended);
    }
  }
}

void session::stop(next_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (op.at() != next_operation::stage::waiting || !take_back_from(op)) return;
    std::erase(waiting_, &op);
    conclude(op, {0, why}, ended);
  });
}

// --- targets posted before their message arrives

std::unique_ptr<channel::posting> session::prepare_posting(const std::vector<incoming_target>& targets) noexcept {
  return pusher_ != nullptr ? pusher_->prepare_posting(targets) : nullptr;
}

// Sends the peer the targets for the message that this operation will receive.
void session::post(next_operation& op) {
  if (op.posted != nullptr && come_.empty()) op.posted->post(come_so_far_ + waiting_.size());
}

// Returns false if the peer is already writing to them.
bool session::take_back(const next_operation& op) { return op.posted == nullptr || op.posted->take_back(); }

// Revokes the targets of this operation and of those queued after it, because each of them would now receive a different message than was
// announced to the peer. Returns false if the message for any of them is already on its way.
bool session::take_back_from(const next_operation& op) {
  bool all = true;
  for (auto at = std::find(waiting_.begin(), waiting_.end(), &op); at != waiting_.end(); ++at) all = take_back(**at) && all;
  return all;
}

status session::meets_posting(const channel::frame_head& head, arrived_message& message) {
  auto* const op = come_.empty() && !waiting_.empty() ? waiting_.front() : nullptr;
  const bool could = op != nullptr && op->posted != nullptr && op->posted->is_given();
  if (head.code == 0) {
    if (!could || take_back(*op)) return {};
    return {errc::io, "the peer took a permit to push a message but did not push it"};
  }
  if (!could || !op->posted->meets(head.code, message.facts.tensors)) {
    return {errc::io, "the peer pushed a message without permission"};
  }
  message.pushed = true;
  message.received = true;
  return {};
}

void session::written(channel::posting& where, const status& outcome, endings& ended) {
  auto& op = *static_cast<next_operation*>(where.waits);
  if (!outcome.ok()) {
    conclude(op, {0, outcome}, ended);
    return;
  }
  note_written(where.by, op);
  std::uint64_t bytes = 0;
  for (const auto& each : where.targets) bytes += each.length;
  const auto tensors = where.targets.size();
  count(where.by, {.name = {}, .received_tensors = tensors, .received_bytes = bytes, .pushed_tensors = tensors});
  conclude(op, {bytes, {}}, ended);
}

// --- messages that are never received

void session::dropped(arrived_message& message) noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& /*ended*/) {
    if (std::exchange(message.received, true) || !message.has_tensors_elsewhere()) return;
    not_received_.erase(message.number);
    const auto& why = message.not_received;
    say(frame_kind::taken, message.number,
        {errc::cancelled, fmt::format("the message was dropped before it was received{}{}", why.ok() ? "" : ": ", why.message())});
  });
}

void session::no_room_for(arrived_message& message, const status& why) noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& /*ended*/) { message.not_received = why; });
}

void session::withdrawn(const channel::frame_head& head, endings& ended) {
  const auto why = channel::status_of(head.code == 0 ? static_cast<std::uint32_t>(errc::cancelled) : head.code, body_);
  if (const auto found = not_received_.find(head.message); found != not_received_.end()) {
    if (const auto message = found->second.lock(); message != nullptr) message->withdrawn = why;
    not_received_.erase(found);
  } else if (const auto running = receiving_now_.find(head.message); running != receiving_now_.end()) {
    running->second->message->withdrawn = why;
    abandon(*running->second, why, ended);
  }
}

}  // namespace penstock::pipes
