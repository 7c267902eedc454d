// Pipes: sending.
#include <algorithm>
#include <list>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

namespace {

using channel::frame_kind;
using channel::limits;

constexpr std::size_t most_passed_at_once = channel::connection::most_passed / 2;  // descriptors, of frames that have not left
// Allocations that the other end is taken to have mapped: fewer than it keeps.
constexpr std::size_t most_passed = pipe_imports::most / 2;
constexpr std::uint64_t most_in_line = std::uint64_t{16} << 10;  // bytes of tensors that travel with the announcement

status check(const outgoing_message& message) {
  if (message.metadata.size() > limits::metadata_bytes) return {errc::invalid_argument, "the metadata of a message are at most 1 MiB"};
  if (message.payloads.size() > limits::parts || message.tensors.size() > limits::parts) {
    return {errc::invalid_argument, fmt::format("a message has at most {} payloads, and as many tensors", limits::parts)};
  }
  std::uint64_t bytes = 0;
  const auto check_part = [&](const outgoing_part& part, std::string_view kind, std::size_t index, bool counts) -> status {
    if (part.metadata.size() > limits::metadata_bytes) {
      return {errc::invalid_argument, fmt::format("{} {}: its metadata are at most 1 MiB", kind, index)};
    }
    if (part.length > limits::tensor_bytes) return {errc::invalid_argument, fmt::format("{} {}: too long", kind, index)};
    if (!channel::may_name_device(part.target_device)) {
      return {errc::invalid_argument, fmt::format("{} {}: \"{}\" names no device: that has at most {} bytes, printable and without spaces",
                                                  kind, index, part.target_device, limits::device_bytes)};
    }
    if (counts && !part.target_device.empty()) {
      return {errc::invalid_argument,
              fmt::format("payload {} is for \"{}\": tensors alone have a target device", index, part.target_device)};
    }
    bytes += part.metadata.size() + (counts ? part.length : 0);
    if (bytes <= limits::payload_bytes) return {};
    return {errc::invalid_argument, "the payloads of a message, with all metadata, are at most 64 MiB together"};
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

// How the other end can map the memory of a tensor. Of several that it cannot map the first tells why.
void session::share_parts(channel::tensor_facts& told, std::size_t tensor, std::vector<exported_part>& exports, device::session& session,
                          const void* memory, bool& told_why) {
  const auto* const from = static_cast<const std::byte*>(memory);
  auto problem = or_no_memory([&]() -> status {
    for (std::uint64_t at = 0; at < told.length;) {
      auto shared = session.share(from + at);
      if (!shared) return shared.error();
      const auto length = std::min(told.length - at, shared->length);
      if (shared->by_descriptor && connection_->has_ring() && exports.size() < most_passed_at_once) {
        bool has_had = false;
        {
          const std::lock_guard guard(lock_);
          has_had = passed_.count({shared->handle, shared->generation}) > 0;
        }
        auto by = has_had ? sys::owned_descriptor() : session.export_shared(from + at);
        if (!by) return by.error();
        if (!has_had) exports.push_back({tensor, told.parts.size(), *std::move(by)});
      }
      told.parts.push_back({std::move(shared->handle), shared->generation, shared->offset, length, false});
      at += length;
    }
    return {};
  });
  if (problem.ok()) return;
  told.parts.clear();
  std::erase_if(exports, [&](const auto& each) { return each.tensor == tensor; });
  if (!std::exchange(told_why, true)) told.not_shared = problem.message();
}

// Finds out where it lies, and whether its streams have come so far.
status session::locate(send_operation& op) {
  auto& with = *with_.runtime;
  for (std::size_t i = 0; i < op.message.payloads.size(); ++i) {
    const auto& part = op.message.payloads[i];
    const auto found = place_of_part(with, part.memory, part.length, "payload", i);
    if (!found) return found.error();
    if (found->on_device()) {
      return {errc::unsupported,
              fmt::format("payload {} lies in memory of {}: payloads are host memory, tensors of any", i, core::name_of(*found))};
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
      return problem.with_context(fmt::format("the stream of tensor {}", i));
    }
  }
  return {};
}

// How the other end can map those that lie in memory of devices.
void session::share_all(send_operation& op) {
  if (!shares_.load()) return;
  bool told_why = false;
  for (std::size_t i = 0; i < op.places.size(); ++i) {
    if (!op.places[i].on_device()) continue;
    share_parts(op.facts[i], i, op.exports, op.places[i].via->session(), op.message.tensors[i].memory, told_why);
  }
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
    const bool pushes = op->turn.over() && prepare_push(*op);
    if (!pushes) share_all(*op);
    return op->watch_deadline();
  });
  with_lock([&](endings& ended) {
    if (problem.ok()) problem = over();
    if (!problem.ok()) {
      conclude(*op, {0, problem}, ended);
      return;
    }
    for (const auto& each : message.tensors) op->tensor_bytes += each.length;
    for (const auto& each : message.payloads) op->announcement_bytes += each.length;
    const bool of_host = std::none_of(op->places.begin(), op->places.end(), [](const auto& each) { return each.on_device(); });
    op->in_line = of_host && op->tensor_bytes <= most_in_line;
    op->announcement_bytes += op->in_line ? op->tensor_bytes : 0;
    op->asked_bytes.resize(message.tensors.size());
    op->number = next_number_++;
    op->known = true;
    op->ready = op->turn.over();
    queued_.push_back(op);
    announce_what_may();
  });
  if (problem.ok() && !op->turn.over()) await_turn(*op, with_.runtime->feeders());
  if (!op->stop_reason().ok()) stop(*op);
  return op;
}

void session::may_begin(send_operation& op, const status& outcome) noexcept {
  if (outcome.ok()) (void)prepare_push(op);
  with_lock([&](endings& ended) {
    op.ready = true;
    if (!op.ended && !outcome.ok()) end(op, {0, outcome}, ended);
    announce_what_may();
  });
}

bool session::may_announce(const send_operation& op) const {
  if (messages_ahead_ == 0) return true;
  return messages_ahead_ < limits::announced_messages && bytes_ahead_ + op.announcement_bytes <= limits::announced_bytes;
}

void session::announce_what_may() {
  while (ready_ && !queued_.empty() && queued_.front()->ready && may_announce(*queued_.front())) {
    auto& op = *queued_.front();
    announce(op);
    queued_.pop_front();
  }
}

// Ahead of the frame that tells whose they are, which keeps what this returns until it has left. One that cannot be passed, and those
// behind it, will be with a later message: so also where as many are on their way ahead of their frames as the other end takes.
std::shared_ptr<void> session::pass_descriptors(std::vector<channel::tensor_facts>& of, std::vector<exported_part>& exports) {
  std::uint32_t passed = 0;
  for (const auto& each : exports) {
    auto& part = of[each.tensor].parts[each.part];
    if (passed_ahead_->load() + passed >= most_passed_at_once || !connection_->pass(each.by.get())) break;
    ++passed;
    part.passed = true;
    if (!passed_.emplace(part.handle, part.generation).second) continue;
    passed_in_order_.emplace_back(part.handle, part.generation);
    if (passed_in_order_.size() <= most_passed) continue;
    passed_.erase(passed_in_order_.front());
    passed_in_order_.pop_front();
  }
  exports.clear();
  passed_ahead_->fetch_add(passed);
  return {nullptr, [ahead = passed_ahead_, passed](void* /*none*/) { ahead->fetch_sub(passed); }};
}

void session::announce(send_operation& op) {
  channel::announcement facts;
  facts.metadata = op.message.metadata;
  const bool pushes = begin_push(op, ++announced_so_far_);
  if (!op.in_line && !pushes) {
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
  auto left = pushes ? nullptr : pass_descriptors(op.facts, op.exports);
  facts.tensors = op.facts;
  for (auto& each : facts.tensors) {
    each.in_line = op.in_line;
    if (op.in_line || pushes) each.address = 0;
    if (pushes) each.parts.clear();
  }
  const auto large = [](const auto& each) { return each.length >= pipe_stripes::least_bytes; };
  if (stripes_ != nullptr && std::any_of(op.facts.begin(), op.facts.end(), large)) stripes_->want();
  auto body = channel::encode(facts);
  body.reserve(body.size() + op.announcement_bytes);
  for (const auto& each : op.message.payloads) append(body, each);
  if (op.in_line) std::for_each(op.message.tensors.begin(), op.message.tensors.end(), [&](const auto& each) { append(body, each); });
  ++messages_ahead_;
  bytes_ahead_ += op.announcement_bytes;
  announced_.emplace(op.number, &op);
  channel::outgoing_frame frame{
      {static_cast<std::uint32_t>(frame_kind::announcement), 0, op.number, 0, body.size()}, std::move(body), {}, {}};
  if (left.use_count() > 0) frame.written = [kept = std::move(left)](const status& /*why*/) {};
  if (op.in_line) {
    frame.written = [self = weak_from_this(), number = op.number](const status& why) {
      const auto pipe = self.lock();
      if (pipe != nullptr && why.ok()) pipe->with_lock([&](endings& ended) { pipe->left(number, ended); });
    };
  }
  // The length of the whole, for the other end's account as well as for this one's.
  frame.head.part = op.announcement_bytes;
  frame.head.code = pushes ? op.pushes_to->slot + 1 : 0;
  enqueue(std::move(frame));
}

// All of a message that needs no answer is on its way.
void session::left(std::uint64_t number, endings& ended) {
  const auto found = announced_.find(number);
  if (found == announced_.end()) return;
  auto& op = *found->second;
  if (op.tensor_bytes > 0) {
    count(channel::in_line_name(), {.name = {}, .sent_tensors = op.message.tensors.size(), .sent_bytes = op.tensor_bytes});
  }
  end(op, {op.tensor_bytes, {}}, ended);
}

status session::wanted(const channel::frame_head& head, endings& ended) {
  const auto found = announced_.find(head.message);
  const bool striped = static_cast<frame_kind>(head.kind) == frame_kind::wanted_piece;
  if (found == announced_.end() || found->second->in_line || found->second->pushing) {
    if (!striped) say_unused(head.code);
    return {};
  }
  auto& op = *found->second;
  if (head.part >= op.places.size()) return {errc::io, "the other end asked for a tensor that there is none of"};
  const auto& tensor = op.message.tensors[head.part];
  auto& asked = op.asked_bytes[head.part];
  if (asked == tensor.length) return {errc::io, "the other end asked for more of a tensor than there is"};
  const auto most = striped && stripes_ != nullptr ? stripes_->piece_bytes(tensor.length) : limits::piece_bytes;
  if (striped && (stripes_ == nullptr || asked != most * head.code)) return {errc::io, "the other end asked for a piece out of turn"};
  std::list<sent_piece> added(1);
  auto& piece = added.front();
  piece.of = &op;
  piece.tensor = head.part;
  piece.offset = asked;
  piece.bytes = std::min(most, tensor.length - asked);
  piece.striped = striped;
  (striped ? piece.number : piece.wanted) = head.code;
  asked += piece.bytes;
  if (op.places[head.part].on_device()) {
    op.waiting.splice(op.waiting.end(), added);
  } else {
    send_piece(op, piece, {static_cast<const std::byte*>(tensor.memory) + piece.offset, piece.bytes}, {});
  }
  start_copies(op, ended);
  return {};
}

// room: where it lies, which stays until it has left; nothing where it stays anyway.
void session::send_piece(const send_operation& op, const sent_piece& asked, std::span<const std::byte> content,
                         staging::landing::lease room) {
  const auto kind = asked.striped ? frame_kind::piece : frame_kind::tensor;
  const auto code = asked.striped ? asked.number : asked.wanted;
  channel::outgoing_frame frame{{static_cast<std::uint32_t>(kind), code, op.number, asked.tensor, content.size()}, {}, content};
  if (asked.striped) return stripes_->enqueue(std::move(frame), std::move(room));
  if (room != nullptr) frame.written = [kept = std::move(room)](const status& /*why*/) {};
  enqueue(std::move(frame));
}

// Of a slot of the inbox that was lent: the other end counts on an answer.
void session::say_unused(std::uint32_t wanted) {
  if (wanted > 0) say(frame_kind::unused, 0, {}, 0, wanted);
}

// The other end's memory for what it asks for, which the devices that send to it have to reach: so before the pipe's lock is taken.
status session::inbox_offered(bool to_host_device) {
  const auto passed = connection_->take_passed();
  if (passed.get() < 0) return {errc::io, "the other end offered memory without a descriptor"};
  auto mapped = with_.door->map_region(passed.get(), pipe_inbox::bytes);
  if (!mapped) return {};  // what it asks for comes over the connection
  auto region = std::make_shared<pinned_region>(*std::move(mapped));
  const staging::link* via = nullptr;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [number, op] : announced_) {
      for (const auto& each : op->places) {
        if (each.on_device() && each.emulated() == to_host_device) via = each.via;
      }
    }
  }
  if (via == nullptr || !region->pin_for(*via)) return {};
  const std::lock_guard guard(lock_);
  outbox_ = std::move(region);
  return {};
}

void session::start_copies(send_operation& op, endings& ended) {
  while (!op.waiting.empty() && !op.again.waits) {
    auto& piece = op.waiting.front();
    const auto& via = *op.places[piece.tensor].via;
    piece.in_inbox = piece.wanted > 0 && piece.wanted <= pipe_inbox::slots && outbox_ != nullptr && outbox_->pinned_for(via);
    if (piece.in_inbox) {
      piece.room = {outbox_, outbox_->data() + (piece.wanted - 1) * pipe_inbox::slot_bytes};
    } else {
      auto room = op.again.take(with_.staging->sending(), via);
      if (!room) {
        say(frame_kind::withdrawn, op.number, room.error());
        end(op, {0, room.error()}, ended);
        return;
      }
      if (*room == nullptr) return;
      piece.room = *std::move(room);
    }
    op.copying.splice(op.copying.end(), op.waiting, op.waiting.begin());
    piece.copy(via, piece.room.get(), static_cast<const std::byte*>(op.message.tensors[piece.tensor].memory) + piece.offset, false);
  }
  with_.runtime->feeders().attend();
}

void session::go_on(send_operation& op) noexcept {
  with_lock([&](endings& ended) {
    op.again.waits = false;
    if (!op.ended) start_copies(op, ended);
  });
}

void session::copied(sent_piece& piece, const status& outcome) noexcept {
  auto& op = *piece.of;
  with_lock([&](endings& ended) {
    std::list<sent_piece> done;
    done.splice(done.end(), op.copying,
                std::find_if(op.copying.begin(), op.copying.end(), [&](const auto& each) { return &each == &piece; }));
    if (op.pushing) {
      op.to_push.splice(op.to_push.end(), done);
      if (!outcome.ok() && op.push_error.ok()) op.push_error = outcome;
      if (op.copying.empty()) push_ended(op, ended);
    } else if (op.ended) {
      say_unused(piece.wanted);
      if (op.at_rest()) ended.told.emplace_back(&op, std::move(op.outcome_then));
    } else if (!outcome.ok()) {
      say_unused(piece.wanted);
      say(frame_kind::withdrawn, op.number, outcome);
      end(op, {0, outcome}, ended);
    } else {
      const std::span<const std::byte> content(piece.room.get(), piece.in_inbox ? 0 : piece.bytes);
      send_piece(op, piece, content, piece.in_inbox ? nullptr : std::move(piece.room));
    }
  });
}

status session::taken(const channel::frame_head& head, endings& ended) {
  const auto found = announced_.find(head.message);
  if (found == announced_.end() || found->second->in_line || found->second->pushing) return {};
  auto& op = *found->second;
  if (head.code != 0) {
    end(op, {0, channel::status_of(head.code, body_)}, ended);
    return {};
  }
  const auto told = channel::decode_carried(body_);
  if (!told) return told.error();
  for (const auto& each : *told) {
    if (channel::find_channel(each.channel) == nullptr) continue;
    count(each.channel, {.name = {}, .sent_tensors = each.tensors, .sent_bytes = each.bytes});
  }
  end(op, {op.tensor_bytes, {}}, ended);
  return {};
}

// Its memory is read by nobody from here on, once what is being copied has been.
void session::end(send_operation& op, io_result outcome, endings& ended) {
  if (op.ended) return;
  op.ended = true;
  if (op.guard != nullptr) {
    op.guard->store(0, std::memory_order_seq_cst);
    free_guards_.push_back(op.guard);
  }
  if (!op.in_line) connection_->withdraw(op.number);
  if (!op.in_line && stripes_ != nullptr) stripes_->withdraw(op.number);
  for (const auto& each : op.waiting) say_unused(each.wanted);
  op.waiting.clear();
  op.again.forget(with_.staging->sending());
  announced_.erase(op.number);
  std::erase(queued_, &op);
  for (const auto& each : op.on_lines) each.on->over->limit(pipe_line::most_draining);
  if (op.at_rest()) {
    ended.told.emplace_back(&op, std::move(outcome));
  } else {
    op.outcome_then = std::move(outcome);
  }
}

void session::stop(send_operation& op) noexcept {
  const auto why = op.stop_reason();
  if (why.ok() || with_.runtime->forked()) return;
  with_lock([&](endings& ended) {
    if (!op.known || op.ended || op.pushing) return;  // what is pushed will be there in a moment, whatever is said
    const bool told = announced_.count(op.number) > 0;
    end(op, {0, why}, ended);
    if (told && !op.in_line) say(frame_kind::withdrawn, op.number, why);
    announce_what_may();
  });
}

}  // namespace penstock::pipes
