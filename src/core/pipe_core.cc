#include "core/pipe_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::core {

namespace {

using channel::frame_kind;
using channel::limits;

constexpr std::uint64_t most_in_line = std::uint64_t{16} << 10;  // bytes of tensors that travel with the announcement
constexpr std::uint64_t frame_bytes = std::uint64_t{1} << 20;    // of a tensor that is sent
constexpr std::uint64_t least_piece = std::uint64_t{2} << 20;    // of a tensor that is pulled, by one thread
constexpr std::uint64_t most_pieces = 1024;
constexpr std::uint64_t pulled_by_caller = std::uint64_t{64} << 10;

status pipe_closed() { return {errc::closed, "the pipe was closed"}; }
status unexpected(std::string_view what) { return {errc::io, fmt::format("the other end sent {} out of turn", what)}; }

status check(const outgoing_message& message, runtime& with) {
  if (message.metadata.size() > limits::metadata_bytes) return {errc::invalid_argument, "the metadata of a message are at most 1 MiB"};
  if (message.payloads.size() > limits::parts || message.tensors.size() > limits::parts) {
    return {errc::invalid_argument, fmt::format("a message has at most {} payloads, and as many tensors", limits::parts)};
  }
  std::uint64_t bytes = 0;
  const auto check_part = [&](const outgoing_part& part, std::string_view kind, std::size_t index) -> status {
    if (part.memory == nullptr && part.length > 0) return {errc::bad_memory, fmt::format("{} {}: null pointer", kind, index)};
    if (part.metadata.size() > limits::metadata_bytes) {
      return {errc::invalid_argument, fmt::format("{} {}: its metadata are at most 1 MiB", kind, index)};
    }
    if (part.length > limits::tensor_bytes) return {errc::invalid_argument, fmt::format("{} {}: too long", kind, index)};
    const auto facts = part.length > 0 ? with.memory().describe(part.memory) : memory_facts{};
    if (!facts) return facts.error().with_context(fmt::format("{} {}", kind, index));
    if (facts->kind != memory_kind::device) return {};
    return {errc::unsupported, fmt::format("{} {} lies in memory of {}: pipes carry host memory", kind, index, facts->device)};
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

// --- incoming messages

bool incoming_core::has_tensors_elsewhere() const {
  return std::any_of(facts.tensors.begin(), facts.tensors.end(), [](const channel::tensor_facts& each) { return !each.in_line; });
}

// --- the beginning

result<std::shared_ptr<pipe_core>> pipe_core::make(const pipe_shared& with, sys::owned_socket over, bool local, bool connecting) {
  auto made = std::make_shared<pipe_core>(with, local);
  if (auto problem = made->start(made, std::move(over), connecting); !problem.ok()) return problem;
  return made;
}

status pipe_core::start(const std::shared_ptr<pipe_core>& self, sys::owned_socket over, bool connecting) {
  socket_ = over.get();
  connection_ = channel::connection::make(with_.door, with_.reactor, std::move(over), connecting);
  auto body = channel::encode(channel::hello{channel::wire_version, channel::own_identity()});
  enqueue({{static_cast<std::uint32_t>(frame_kind::hello), 0, 0, 0, body.size()}, std::move(body), {}, {}});
  if (auto problem = connection_->start(self); !problem.ok()) return problem;
  connection_->flush();
  return {};
}

pipe_core::~pipe_core() {
  if (connection_ != nullptr && !with_.runtime->forked()) connection_->close(false);
}

// Takes a step with the lock, then sends what it has queued and tells those whom it has ended. A step that runs out of memory ends the
// pipe: the ends would no longer agree.
template <class Step>
void pipe_core::with_lock(Step step) noexcept {
  endings ended;
  {
    const std::lock_guard guard(lock_);
    or_without_memory(
        [&] {
          step(ended);
          return true;
        },
        [&] {
          end_all(no_memory(), ended);
          return false;
        });
  }
  connection_->flush();
  for (auto& [op, outcome] : ended) op->tell_end(std::move(outcome));
}

void pipe_core::enqueue(channel::outgoing_frame frame) { (void)connection_->enqueue(std::move(frame)); }  // else all are told of the end

void pipe_core::tell(frame_kind kind, std::uint64_t message, const status& why) {
  auto body = channel::encode_text(why.message());
  const auto size = body.size();
  enqueue({{static_cast<std::uint32_t>(kind), channel::code_of(why), message, 0, size}, std::move(body), {}, {}});
}

status pipe_core::over() const { return closed_ ? pipe_closed() : lost_; }

// --- sending

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
    announce_what_may(ended);
  });
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

bool pipe_core::may_announce(const send_operation& op) const {
  if (messages_ahead_ == 0) return true;
  return messages_ahead_ < limits::announced_messages && bytes_ahead_ + op.announcement_bytes <= limits::announced_bytes;
}

void pipe_core::announce_what_may(endings& /*ended*/) {
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
    for (std::uint64_t at = 0; at < all.size(); at += frame_bytes) {
      const auto part = all.subspan(at, std::min(frame_bytes, all.size() - at));
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
    announce_what_may(ended);
  });
}

// --- receiving

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
    if (op.targets[i].length == 0) continue;
    if (op.targets[i].memory == nullptr) return {errc::bad_memory, fmt::format("target {}: null pointer", i)};
    const auto facts = with.memory().describe(op.targets[i].memory);
    if (!facts) return facts.error().with_context(fmt::format("target {}", i));
    if (facts->kind == memory_kind::device) {
      return {errc::unsupported, fmt::format("target {} lies in memory of {}: pipes carry host memory", i, facts->device)};
    }
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

// --- what the other end says, on the reactor's thread

result<std::span<std::byte>> pipe_core::begins(const channel::frame_head& head) {
  const std::lock_guard guard(lock_);
  if (closed_) return std::span<std::byte>();  // what comes goes nowhere, until what is queued has left
  const auto kind = static_cast<frame_kind>(head.kind);
  if (greeted_ == (kind == frame_kind::hello)) return unexpected("its greeting");
  std::uint64_t most = 0;
  switch (kind) {
    case frame_kind::hello:
    case frame_kind::reach:
    case frame_kind::taken:
    case frame_kind::withdrawn:
      most = limits::text_bytes;
      break;
    case frame_kind::announcement:
      if (!ready_) return unexpected("a message");
      most = limits::announcement_bytes;
      break;
    case frame_kind::tensor: {
      if (head.length == 0 || head.length > frame_bytes) return unexpected("a part of a tensor");
      const auto found = receiving_now_.find(head.message);
      if (found == receiving_now_.end() || found->second->by->pulls()) return std::span<std::byte>();  // it was stopped
      auto& op = *found->second;
      if (head.part >= op.targets.size() || op.arrived_bytes[head.part] + head.length > op.targets[head.part].length) {
        return unexpected("a part of a tensor");
      }
      return std::span(static_cast<std::byte*>(op.targets[head.part].memory) + op.arrived_bytes[head.part], head.length);
    }
    case frame_kind::wanted:
    case frame_kind::credit:
      break;
    default:
      return status(errc::io, fmt::format("the other end sent a frame of kind {}, which there is none of", head.kind));
  }
  if (head.length > most)
    return status(errc::io, fmt::format("the other end sent a frame of {} bytes, and {} is the most", head.length, most));
  body_.resize(head.length);
  return std::span(body_);
}

status pipe_core::arrived(const channel::frame_head& head) {
  status wrong;
  with_lock([&](endings& ended) {
    if (closed_) return;
    switch (static_cast<frame_kind>(head.kind)) {
      case frame_kind::hello:
        wrong = greeted(body_);
        break;
      case frame_kind::reach:
        wrong = reached(body_);
        announce_what_may(ended);
        break;
      case frame_kind::announcement:
        wrong = announced(head, ended);
        break;
      case frame_kind::wanted:
        if (const auto found = announced_.find(head.message); found != announced_.end() && !found->second->in_line) {
          send_tensors(*found->second);
        }
        break;
      case frame_kind::tensor:
        tensor_arrived(head, ended);
        break;
      case frame_kind::taken:
        if (const auto found = announced_.find(head.message); found != announced_.end() && !found->second->in_line) {
          auto outcome = channel::status_of(head.code, body_);
          end(*found->second, {outcome.ok() ? found->second->tensor_bytes : 0, outcome}, ended);
        }
        break;
      case frame_kind::withdrawn: {
        const auto why = channel::status_of(head.code == 0 ? static_cast<std::uint32_t>(errc::cancelled) : head.code, body_);
        if (const auto found = not_received_.find(head.message); found != not_received_.end()) {
          if (const auto message = found->second.lock(); message != nullptr) message->withdrawn = why;
          not_received_.erase(found);
        } else if (const auto running = receiving_now_.find(head.message); running != receiving_now_.end()) {
          running->second->message->withdrawn = why;
          running->second->stopping.store(true);  // the pieces end it
          if (!running->second->by->pulls()) end(*running->second, {0, why}, ended);
        }
        break;
      }
      case frame_kind::credit:
        if (head.code > messages_ahead_ || head.part > bytes_ahead_) {
          wrong = unexpected("credit");
          break;
        }
        messages_ahead_ -= head.code;
        bytes_ahead_ -= head.part;
        announce_what_may(ended);
        break;
    }
  });
  return wrong;
}

status pipe_core::greeted(std::span<const std::byte> body) {
  auto told = channel::decode_hello(body);
  if (!told) return told.error();
  peer_ = told->who;
  peer_name_ = fmt::format("process {}", peer_.pid);
  if (local_) {
    const auto known = with_.door->credentials_of(socket_);
    if (!known) return known.error();
    if (known->uid != geteuid()) return {errc::permission_denied, fmt::format("the other end is a process of user {}", known->uid)};
    peer_.pid = known->pid;
    peer_.vouched = true;
    peer_name_ = fmt::format("process {} of user {}", known->pid, known->uid);
  }
  greeted_ = true;
  for (const auto* each : with_.channels) {
    auto refusal = each->refuses(peer_, channel::own_identity(), *with_.door);
    receiving_.push_back({std::string(each->name()), refusal.value_or("")});
  }
  auto list = channel::encode(receiving_);
  const auto size = list.size();
  enqueue({{static_cast<std::uint32_t>(frame_kind::reach), 0, 0, 0, size}, std::move(list), {}, {}});
  return {};
}

// Of the channels that may be used here, the best that the other end can receive by.
status pipe_core::reached(std::span<const std::byte> body) {
  if (ready_) return unexpected("its channels");
  auto told = channel::decode_reach(body);
  if (!told) return told.error();
  for (const auto* each : with_.channels) {
    const auto found = std::find_if(told->begin(), told->end(), [&](const auto& one) { return one.name == each->name(); });
    auto refusal = found == told->end() ? std::string("the other end does not use it") : found->refusal;
    if (refusal.empty() && send_by_ == nullptr) send_by_ = each;
    sending_.push_back({std::string(each->name()), std::move(refusal)});
  }
  if (send_by_ == nullptr) {
    std::string reasons;
    for (const auto& each : sending_) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.name, each.refusal);
    return {errc::unsupported, fmt::format("no channel leads to the other end ({})", reasons)};
  }
  ready_ = true;
  known_.notify_all();
  return {};
}

status pipe_core::announced(const channel::frame_head& head, endings& ended) {
  auto message = std::make_shared<incoming_core>();
  auto facts = channel::decode_announcement(body_);
  if (!facts) return facts.error();
  message->facts = *std::move(facts);
  message->number = head.message;
  message->body = std::move(body_);
  body_ = {};
  const std::uint64_t bytes = message->body.size() - message->facts.bytes_before_payloads;
  const bool first = untaken_messages_ == 0;
  if (!first && (untaken_messages_ >= limits::announced_messages || untaken_bytes_ + bytes > limits::announced_bytes)) {
    return unexpected("more messages than there is room for");
  }
  for (const auto& each : message->facts.tensors) {
    const auto* const by = channel::find_channel(each.channel);
    const auto known = std::find_if(receiving_.begin(), receiving_.end(), [&](const auto& one) { return one.name == each.channel; });
    const bool same = each.channel == message->facts.tensors.front().channel && each.in_line == message->facts.tensors.front().in_line;
    if (by == nullptr || known == receiving_.end() || !known->refusal.empty() || !same) return unexpected("a tensor by a channel");
  }
  ++untaken_messages_;
  untaken_bytes_ += bytes;
  if (message->has_tensors_elsewhere()) not_received_.emplace(message->number, message);
  come_.push_back(std::move(message));
  deliver(ended);
  return {};
}

void pipe_core::tensor_arrived(const channel::frame_head& head, endings& ended) {
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end() || found->second->by->pulls()) return;
  auto& op = *found->second;
  op.arrived_bytes[head.part] += head.length;
  if (op.arrived_bytes[head.part] < op.targets[head.part].length || --op.tensors_missing > 0) return;
  tell(frame_kind::taken, head.message, {});
  end(op, {0, {}}, ended);
}

// --- the end

void pipe_core::end_all(const status& why, endings& ended) {
  if (lost_.ok()) lost_ = why;
  while (!announced_.empty()) end(*announced_.begin()->second, {0, why}, ended);
  while (!queued_.empty()) end(*queued_.front(), {0, why}, ended);
  for (auto* op : waiting_) {
    op->ended = true;
    ended.emplace_back(op, io_result{0, why});
  }
  waiting_.clear();
  std::vector<receive_operation*> running;
  for (const auto& [number, op] : receiving_now_) running.push_back(op);
  for (auto* op : running) {
    op->stopping.store(closed_ || op->stopping.load());
    if (op->by->pulls()) continue;  // the last piece ends it
    connection_->divert(op->message->number);
    end(*op, {0, why}, ended);
  }
  known_.notify_all();
}

void pipe_core::lost(const status& why) noexcept {
  with_lock([&](endings& ended) { end_all(status(why.code(), fmt::format("{}: {}", peer_name_, why.message())), ended); });
}

// A forked child shares the socket with its parent, and has nothing to say.
void pipe_core::close() noexcept {
  if (with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (std::exchange(closed_, true)) return;
    end_all(pipe_closed(), ended);
    for (auto& message : come_) {
      if (message->has_tensors_elsewhere()) tell(frame_kind::taken, message->number, pipe_closed());
    }
    come_.clear();
  });
  connection_->close(false);
}

result<pipe_plan> pipe_core::explain() {
  using namespace std::chrono_literals;
  std::unique_lock guard(lock_);
  if (!known_.wait_for(guard, 10s, [this] { return ready_ || !over().ok(); })) {
    return status(errc::timed_out, "the other end has not answered for 10 s");
  }
  if (!ready_) return over();
  pipe_plan told;
  told.transport = local_ ? "unix" : "tcp";
  told.peer = peer_name_;
  const auto list = [](const std::vector<channel::reached_channel>& from) {
    std::vector<channel_choice> out;
    bool chosen = false;
    for (const auto& each : from) {
      const bool best = each.refusal.empty() && !std::exchange(chosen, chosen || each.refusal.empty());
      out.push_back({each.name, best, each.refusal});
    }
    return out;
  };
  told.sending = list(sending_);
  told.receiving = list(receiving_);
  return told;
}

std::vector<channel_stats> pipe_core::stats() {
  const std::lock_guard guard(lock_);
  std::vector<channel_stats> told;
  for (const auto& [name, counts] : stats_) {
    told.push_back(counts);
    told.back().name = name;
  }
  return told;
}

}  // namespace penstock::core
