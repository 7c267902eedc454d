// Pipes: messages that come, and who waits for them.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;

core::operation* session::next(incoming_message& into, const pipe_operation_options& options, io_callback callback,
                               std::unique_ptr<posting> posted) {
  auto* op = new next_operation(shared_from_this(), with_.runtime);
  op->into = &into;
  op->posted = std::move(posted);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback), options.calls_at_once);
  op->retain();
  auto problem = or_no_memory([&] { return op->watch_deadline(); });
  with_lock([&](endings& ended) {
    if (problem.ok() && closed_) problem = pipe_closed();
    if (problem.ok() && come_.empty()) problem = lost_;
    if (problem.ok()) {
      op->known = true;
      waiting_.push_back(op);
      post(*op);
      deliver(ended);
    } else {
      conclude(*op, {0, problem}, ended);
    }
  });
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

status session::announced(const channel::frame_head& head, endings& ended) {
  const auto wrong = [](std::string_view what) { return status(errc::io, fmt::format("the other end sent {}", what)); };
  auto message = std::make_shared<arrived_message>();
  auto facts = channel::decode_announcement(body_);
  if (!facts) return facts.error();
  message->facts = *std::move(facts);
  message->number = head.message;
  message->body = std::move(body_);
  body_ = {};
  const std::uint64_t bytes = message->contents().size();
  const bool first = untaken_messages_ == 0;
  if (!first && (untaken_messages_ >= limits::announced_messages || untaken_bytes_ + bytes > limits::announced_bytes)) {
    return wrong("more messages than there is room for");
  }
  const auto& tensors = message->facts.tensors;
  if (std::any_of(tensors.begin(), tensors.end(), [&](const auto& each) { return each.in_line != tensors.front().in_line; })) {
    return wrong("a message of which a part is in line");
  }
  offer_descriptors(message->facts);
  ++come_so_far_;
  if (auto broken = meets_posting(head, *message); !broken.ok()) return broken;
  ++untaken_messages_;
  untaken_bytes_ += bytes;
  if (message->has_tensors_elsewhere() && !message->pushed) not_received_.emplace(message->number, message);
  come_.push_back(std::move(message));
  deliver(ended);
  return {};
}

// Keeps the descriptors that came with it, until what they are for is mapped.
void session::offer_descriptors(const channel::announcement& facts) {
  for (const auto& tensor : facts.tensors) {
    for (const auto& part : tensor.parts) {
      if (!part.passed) continue;
      auto by = connection_->take_passed();  // none: it was lost, as where a process may have no more
      if (by.get() >= 0) imports_.offer(part.handle, part.generation, std::move(by));
    }
  }
}

void session::deliver(endings& ended) {
  while (!come_.empty() && !waiting_.empty()) {
    auto message = std::move(come_.front());
    come_.pop_front();
    auto& op = *waiting_.front();
    waiting_.pop_front();
    const std::uint64_t bytes = message->contents().size();
    --untaken_messages_;
    untaken_bytes_ -= bytes;
    say(frame_kind::credit, 0, {}, bytes, 1);
    message->pipe = shared_from_this();
    op.come = std::move(message);
    if (op.come->pushed) {
      being_pushed_.push_back(&op);
      pushes_here_.store(being_pushed_.size(), std::memory_order_relaxed);
    } else {
      conclude(op, {0, {}}, ended);
    }
  }
}

void session::stop(next_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended || !take_back_from(op)) return;
    std::erase(waiting_, &op);
    conclude(op, {0, why}, ended);
  });
}

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
