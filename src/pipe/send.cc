// Pipes: sending.
#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

namespace {

using channel::frame_kind;
using channel::limits;

constexpr std::uint64_t most_in_line = std::uint64_t{16} << 10;  // maximum bytes of tensors sent inside the announcement

status check(const outgoing_message& message) {
  if (message.metadata.size() > limits::metadata_bytes) return {errc::invalid_argument, "the metadata of a message must be at most 1 MiB"};
  if (message.payloads.size() > limits::parts || message.tensors.size() > limits::parts) {
    return {errc::invalid_argument, fmt::format("a message may contain at most {0} payloads and {0} tensors", limits::parts)};
  }
  std::uint64_t bytes = 0;
  const auto check_part = [&](const outgoing_part& part, std::string_view kind, std::size_t index, bool counts) -> status {
    if (part.metadata.size() > limits::metadata_bytes) {
      return {errc::invalid_argument, fmt::format("{} {}: metadata must be at most 1 MiB", kind, index)};
    }
    if (part.length > limits::tensor_bytes) return {errc::invalid_argument, fmt::format("{} {}: too long", kind, index)};
    if (!channel::may_name_device(part.target_device)) {
      return {errc::invalid_argument,
              fmt::format("{} {}: \"{}\" is not a device name: it must be at most {} printable characters, without spaces", kind, index,
                          part.target_device, limits::device_bytes)};
    }
    if (counts && !part.target_device.empty()) {
      return {errc::invalid_argument,
              fmt::format("payload {} has the target device \"{}\": only tensors may have one", index, part.target_device)};
    }
    bytes += part.metadata.size() + (counts ? part.length : 0);
    if (bytes <= limits::payload_bytes) return {};
    return {errc::invalid_argument, "the payloads and metadata of a message must be at most 64 MiB in total"};
  };
  status wrong;
  for (std::size_t i = 0; i < message.payloads.size() && wrong.ok(); ++i) wrong = check_part(message.payloads[i], "payload", i, true);
  for (std::size_t i = 0; i < message.tensors.size() && wrong.ok(); ++i) wrong = check_part(message.tensors[i], "tensor", i, false);
  return wrong;
}

void append(std::vector<std::byte>& to, const outgoing_part& part) {
  const auto* const from = static_cast<const std::byte*>(part.memory);
  to.insert(to.end(), from, from + part.length);
}

}  // namespace

// Classifies the parts' memory and checks whether their streams have reached the send.
status session::locate(send_operation& op) {
  auto& with = *with_.runtime;
  for (std::size_t i = 0; i < op.message.payloads.size(); ++i) {
    const auto& part = op.message.payloads[i];
    const auto found = place_of_part(with, part.memory, part.length, "payload", i);
    if (!found) return found.error();
    if (found->on_device()) {
      return {errc::unsupported,
              fmt::format("payload {} is in the memory of {}: payloads must be in host memory; tensors may be in any memory", i,
                          core::name_of(*found))};
    }
  }
  for (std::size_t i = 0; i < op.message.tensors.size(); ++i) {
    const auto& part = op.message.tensors[i];
    const auto found = place_of_part(with, part.memory, part.length, "tensor", i);
    if (!found) return found.error();
    op.places.push_back(*found);
    auto& told = op.facts.emplace_back();
    told.length = part.length;
    told.address = reinterpret_cast<std::uintptr_t>(part.memory);
    told.metadata = part.metadata;
    told.target_device = part.target_device;
    if (!found->on_device()) continue;
    told.device = core::name_of(*found);
    if (auto problem = op.turn.add(*found->via, part.stream); !problem.ok()) {
      return problem.with_context(fmt::format("stream of tensor {}", i));
    }
  }
  return {};
}

std::atomic<std::uint64_t>* session::guards::take() {
  if (free.empty()) free.push_back(&all.emplace_back());
  auto* const taken = free.back();
  free.pop_back();
  return taken;
}

core::operation* session::send(const outgoing_message& message, const pipe_operation_options& options, io_callback callback) {
  auto* op = new send_operation(shared_from_this(), with_.runtime);
  op->set_deadline(options.deadline);
  op->set_callback(std::move(callback), options.calls_at_once);
  op->retain();
  auto problem = or_no_memory([&]() -> status {
    op->message = message;
    if (auto wrong = check(op->message); !wrong.ok()) return wrong;
    if (auto wrong = locate(*op); !wrong.ok()) return wrong;
    op->asked_bytes.resize(op->places.size());
    for (const auto& each : carriers_) {
      if (each != nullptr) each->prepare(*op, op->turn.over());
    }
    return op->watch_deadline();
  });
  bool known = false;
  with_lock([&](endings& ended) {
    if (problem.ok()) problem = why_over();
    if (!problem.ok()) {
      conclude(*op, {0, problem}, ended);
      known = true;
      return;
    }
    for (const auto& each : message.tensors) op->tensor_bytes += each.length;
    for (const auto& each : message.payloads) op->announcement_bytes += each.length;
    const bool of_host = std::none_of(op->places.begin(), op->places.end(), [](const auto& each) { return each.on_device(); });
    op->in_line = of_host && op->tensor_bytes <= most_in_line;
    op->announcement_bytes += op->in_line ? op->tensor_bytes : 0;
    op->number = next_number_++;
    op->ready = op->turn.over();
    queued_.push_back(op);
    op->move_to(send_operation::stage::queued);
    known = true;
    announce_what_may(ended);
  });
  if (!known) {  // the step ran out of memory
    problem = no_memory();
    op->end();
    op->tell_end({0, problem});
  }
  if (problem.ok() && !op->turn.over()) await_turn(*op, with_.runtime->feeders());
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

void session::may_begin(send_operation& op, const status& outcome) noexcept {
  if (outcome.ok() && pusher_ != nullptr) pusher_->in_time(op);
  with_lock([&](endings& ended) {
    op.ready = true;
    if (!outcome.ok()) end(op, {0, outcome}, ended);
    announce_what_may(ended);
  });
}

bool session::may_announce(const send_operation& op) const {
  if (ahead_.messages == 0) return true;
  return ahead_.messages < limits::announced_messages && ahead_.bytes + op.announcement_bytes <= limits::announced_bytes;
}

void session::announce_what_may(endings& ended) {
  while (is_ready() && !queued_.empty() && queued_.front()->ready && may_announce(*queued_.front())) {
    auto& op = *queued_.front();
    announce(op, ended);
    queued_.pop_front();
  }
}

std::uint64_t session::place_in_line(const channel::outgoing& message) const noexcept {
  const auto ahead = std::find(queued_.begin(), queued_.end(), &message) - queued_.begin();
  return announced_so_far_ + static_cast<std::uint64_t>(ahead) + 1;
}

bool session::leaves_now(const channel::outgoing& message) const noexcept {
  return is_ready() && queued_.empty() && may_announce(static_cast<const send_operation&>(message));
}

void session::announce(send_operation& op, endings& ended) {
  channel::announcement facts;
  facts.metadata = op.message.metadata;
  ++announced_so_far_;
  const auto pushes = pusher_ != nullptr ? pusher_->push(op, announced_so_far_, ended) : 0;
  if (!op.in_line && pushes == 0) {
    op.guard = guards_.take();
    facts.guard_address = reinterpret_cast<std::uintptr_t>(op.guard);
    facts.guard_value = channel::own_identity().process_token ^ (op.number * 0x9e3779b97f4a7c15);
    op.guard->store(facts.guard_value, std::memory_order_release);
  }
  for (const auto& each : op.message.payloads) {
    facts.payload_lengths.push_back(each.length);
    facts.payload_metadata.push_back(each.metadata);
  }
  facts.tensors = op.facts;
  std::vector<std::shared_ptr<void>> left;
  for (const auto& each : carriers_) {
    if (each == nullptr || pushes > 0 || op.in_line) continue;
    if (auto kept = each->announce(op, facts.tensors, ended); kept.use_count() > 0) left.push_back(std::move(kept));
  }
  for (auto& each : facts.tensors) {
    each.in_line = op.in_line;
    if (op.in_line || pushes > 0) each.address = 0;
    if (pushes > 0) each.parts.clear();
  }
  auto body = channel::encode(facts);
  body.reserve(body.size() + op.announcement_bytes);
  for (const auto& each : op.message.payloads) append(body, each);
  if (op.in_line) std::for_each(op.message.tensors.begin(), op.message.tensors.end(), [&](const auto& each) { append(body, each); });
  ++ahead_.messages;
  ahead_.bytes += op.announcement_bytes;
  announced_.emplace(op.number, &op);
  op.move_to(pushes > 0 ? send_operation::stage::pushed : send_operation::stage::announced);
  channel::outgoing_frame frame{
      {static_cast<std::uint32_t>(frame_kind::announcement), 0, op.number, 0, body.size()}, std::move(body), {}, {}};
  if (!left.empty()) frame.written = [kept = std::move(left)](const status& /*why*/) {};
  if (op.in_line) {
    frame.written = [self = weak_from_this(), number = op.number](const status& why) {
      const auto pipe = self.lock();
      if (pipe != nullptr && why.ok()) pipe->with_lock([&](endings& ended) { pipe->left(number, ended); });
    };
  }
  // Both ends count the whole message's length.
  frame.head.part = op.announcement_bytes;
  frame.head.code = pushes;
  enqueue(std::move(frame));
}

// Called when a message that needs no reply has been sent completely.
void session::left(std::uint64_t number, endings& ended) {
  const auto found = announced_.find(number);
  if (found == announced_.end()) return;
  auto& op = *found->second;
  if (op.tensor_bytes > 0) {
    count(channel::in_line_channel(), {.name = {}, .sent_tensors = op.message.tensors.size(), .sent_bytes = op.tensor_bytes});
  }
  end(op, {op.tensor_bytes, {}}, ended);
}

status session::taken(const channel::frame_head& head, endings& ended) {
  if (find_outgoing(head.message) == nullptr) return {};
  auto& op = *announced_.find(head.message)->second;
  if (head.code != 0) {
    end(op, {0, channel::status_of(head.code, body_)}, ended);
    return {};
  }
  const auto told = channel::decode_carried(body_);
  if (!told) return told.error();
  for (const auto& each : *told) {
    const auto* const by = find_channel(each.channel);
    if (by == nullptr) continue;
    count(*by, {.name = {}, .sent_tensors = each.tensors, .sent_bytes = each.bytes});
  }
  end(op, {op.tensor_bytes, {}}, ended);
  return {};
}

// After this nothing reads the memory, except copies that are already running.
void session::end(send_operation& op, io_result outcome, endings& ended) {
  if (op.has_ended()) return;
  op.move_to(send_operation::stage::ending);
  op.outcome_then = std::move(outcome);
  announced_.erase(op.number);
  std::erase(queued_, &op);
  if (op.guard != nullptr) {
    op.guard->store(0, std::memory_order_relaxed);
    // An ARM processor may reorder the program's later stores even before a store-release. The receiver would then read changed bytes and
    // still find the guard valid.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    guards_.free.push_back(op.guard);
  }
  if (!op.in_line) {
    connection_->withdraw(op.number);
    for (const auto& each : carriers_) {
      if (each != nullptr) each->withdraw(op);
    }
  }
  rests(op, ended);
}

void session::rests(channel::outgoing& message, endings& ended) {
  auto& op = static_cast<send_operation&>(message);
  if (op.at() == send_operation::stage::ending && op.at_rest()) conclude(op, std::move(op.outcome_then), ended);
}

void session::withdraw(channel::outgoing& message, const status& why, endings& ended) {
  say(frame_kind::withdrawn, message.number, why);
  end(static_cast<send_operation&>(message), {0, why}, ended);
}

void session::pushed(channel::outgoing& message, const channel::carrier& by, const status& outcome, endings& ended) {
  const auto tensors = message.places.size();
  if (outcome.ok()) count(by.of(), {.name = {}, .sent_tensors = tensors, .sent_bytes = message.tensor_bytes, .pushed_tensors = tensors});
  end(static_cast<send_operation&>(message), {outcome.ok() ? message.tensor_bytes : 0, outcome}, ended);
}

void session::stop(send_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    using stage = send_operation::stage;
    const auto at = op.at();
    if (at != stage::queued && at != stage::announced) return;  // a push completes quickly and cannot be stopped
    end(op, {0, why}, ended);
    if (at == stage::announced && !op.in_line) say(frame_kind::withdrawn, op.number, why);
    announce_what_may(ended);
  });
}

}  // namespace penstock::pipes
