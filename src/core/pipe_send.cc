// Pipes: sending.
#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/pipe_core.hpp"

namespace penstock::core {

namespace {

using channel::frame_kind;
using channel::limits;

constexpr std::uint64_t most_in_line = std::uint64_t{16} << 10;  // bytes of tensors that travel with the announcement

status check(const outgoing_message& message, runtime& with) {
  if (message.metadata.size() > limits::metadata_bytes) return {errc::invalid_argument, "the metadata of a message are at most 1 MiB"};
  if (message.payloads.size() > limits::parts || message.tensors.size() > limits::parts) {
    return {errc::invalid_argument, fmt::format("a message has at most {} payloads, and as many tensors", limits::parts)};
  }
  std::uint64_t bytes = 0;
  const auto check_part = [&](const outgoing_part& part, std::string_view kind, std::size_t index) -> status {
    if (part.metadata.size() > limits::metadata_bytes) {
      return {errc::invalid_argument, fmt::format("{} {}: its metadata are at most 1 MiB", kind, index)};
    }
    if (part.length > limits::tensor_bytes) return {errc::invalid_argument, fmt::format("{} {}: too long", kind, index)};
    return check_host_memory(with, part.memory, part.length, kind, index);
  };
  for (std::size_t i = 0; i < message.payloads.size(); ++i) {
    if (auto wrong = check_part(message.payloads[i], "payload", i); !wrong.ok()) return wrong;
    bytes += message.payloads[i].length;
    bytes += message.payloads[i].metadata.size();
    if (bytes > limits::payload_bytes) return {errc::invalid_argument, "the payloads of a message are at most 64 MiB together"};
  }
  for (std::size_t i = 0; i < message.tensors.size(); ++i) {
    if (auto wrong = check_part(message.tensors[i], "tensor", i); !wrong.ok()) return wrong;
    bytes += message.tensors[i].metadata.size();
    if (bytes > limits::payload_bytes) return {errc::invalid_argument, "the metadata of a message are at most 64 MiB together"};
  }
  return {};
}

void append(std::vector<std::byte>& to, const outgoing_part& part) {
  const auto* const from = static_cast<const std::byte*>(part.memory);
  to.insert(to.end(), from, from + part.length);
}

}  // namespace

operation* pipe_core::send(const outgoing_message& message, const pipe_operation_options& options, io_callback callback) {
  auto* op = new send_operation(shared_from_this(), with_.runtime);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback));
  op->retain();
  auto problem = or_no_memory([&]() -> status {
    op->message = message;
    if (auto wrong = check(message, *with_.runtime); !wrong.ok()) return wrong;
    return op->watch_deadline();
  });
  with_lock([&](endings& ended) {
    if (problem.ok()) problem = over();
    if (!problem.ok()) {
      op->ended = true;
      ended.emplace_back(op, io_result{0, problem});
      return;
    }
    for (const auto& each : message.tensors) op->tensor_bytes += each.length;
    for (const auto& each : message.payloads) op->announcement_bytes += each.length;
    op->in_line = op->tensor_bytes <= most_in_line;
    op->announcement_bytes += op->in_line ? op->tensor_bytes : 0;
    op->number = next_number_++;
    op->known = true;
    queued_.push_back(op);
    announce_what_may();
  });
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

bool pipe_core::may_announce(const send_operation& op) const {
  if (messages_ahead_ == 0) return true;
  return messages_ahead_ < limits::announced_messages && bytes_ahead_ + op.announcement_bytes <= limits::announced_bytes;
}

void pipe_core::announce_what_may() {
  while (ready_ && !queued_.empty() && may_announce(*queued_.front())) {
    auto& op = *queued_.front();
    announce(op);
    queued_.pop_front();
  }
}

void pipe_core::announce(send_operation& op) {
  channel::announcement facts;
  facts.metadata = op.message.metadata;
  op.by = send_by_;
  const bool pulled = !op.in_line && send_by_->pulls();
  if (pulled) {
    if (free_guards_.empty()) free_guards_.push_back(&guards_.emplace_back());
    op.guard = free_guards_.back();
    free_guards_.pop_back();
    facts.guard_address = reinterpret_cast<std::uintptr_t>(op.guard);
    facts.guard_value = channel::own_identity().process_token ^ (op.number * 0x9e3779b97f4a7c15);
    op.guard->store(facts.guard_value, std::memory_order_release);
  }
  for (const auto& each : op.message.payloads) {
    facts.payload_lengths.push_back(each.length);
    facts.payload_metadata.push_back(each.metadata);
  }
  for (const auto& each : op.message.tensors) {
    facts.tensors.push_back({each.length, pulled ? reinterpret_cast<std::uintptr_t>(each.memory) : 0, op.in_line,
                             std::string(send_by_->name()), each.metadata});
  }
  auto body = channel::encode(facts);
  body.reserve(body.size() + op.announcement_bytes);
  for (const auto& each : op.message.payloads) append(body, each);
  if (op.in_line) std::for_each(op.message.tensors.begin(), op.message.tensors.end(), [&](const auto& each) { append(body, each); });
  ++messages_ahead_;
  bytes_ahead_ += op.announcement_bytes;
  announced_.emplace(op.number, &op);
  channel::outgoing_frame frame{
      {static_cast<std::uint32_t>(frame_kind::announcement), 0, op.number, 0, body.size()}, std::move(body), {}, {}};
  if (op.in_line) {
    frame.written = [self = weak_from_this(), number = op.number](const status& why) {
      const auto pipe = self.lock();
      if (pipe != nullptr && why.ok()) pipe->with_lock([&](endings& ended) { pipe->left(number, ended); });
    };
  }
  // The length of the whole, for the other end's account as well as for this one's.
  frame.head.part = op.announcement_bytes;
  enqueue(std::move(frame));
}

// All of a message that needs no answer is on its way.
void pipe_core::left(std::uint64_t number, endings& ended) {
  const auto found = announced_.find(number);
  if (found != announced_.end()) end(*found->second, {found->second->tensor_bytes, {}}, ended);
}

void pipe_core::send_tensors(send_operation& op) {
  for (std::size_t i = 0; i < op.message.tensors.size(); ++i) {
    const auto& each = op.message.tensors[i];
    const std::span<const std::byte> all(static_cast<const std::byte*>(each.memory), each.length);
    for (std::uint64_t at = 0; at < all.size(); at += limits::frame_bytes) {
      const auto part = all.subspan(at, std::min(limits::frame_bytes, all.size() - at));
      enqueue({{static_cast<std::uint32_t>(frame_kind::tensor), 0, op.number, i, part.size()}, {}, part, {}});
    }
  }
}

// Its memory is read by nobody from here on.
void pipe_core::end(send_operation& op, io_result outcome, endings& ended) {
  if (op.ended) return;
  op.ended = true;
  if (op.guard != nullptr) {
    op.guard->store(0, std::memory_order_seq_cst);
    free_guards_.push_back(op.guard);
  }
  if (!op.in_line) connection_->withdraw(op.number);
  if (outcome.ok() && op.by != nullptr && op.tensor_bytes > 0) {
    auto& count = stats_[std::string(op.by->name())];
    count.sent_tensors += op.message.tensors.size();
    count.sent_bytes += op.tensor_bytes;
  }
  announced_.erase(op.number);
  std::erase(queued_, &op);
  ended.emplace_back(&op, std::move(outcome));
}

void pipe_core::stop(send_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended) return;
    const bool told = announced_.count(op.number) > 0;
    end(op, {0, why}, ended);
    if (told && !op.in_line) tell(frame_kind::withdrawn, op.number, why);
    announce_what_may();
  });
}

}  // namespace penstock::core
