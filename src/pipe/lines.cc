// Pipes: tensors that network cards move, over lines of a fabric.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "pipe/session.hpp"
#include "sys/secret.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;

namespace {

// Nobody else can guess it, and so nobody else can write to what is received by it.
result<std::uint64_t> draw_tag() {
  const auto drawn = sys::random_digest();
  if (!drawn) return drawn.error();
  std::uint64_t tag = 0;
  std::memcpy(&tag, drawn->data(), sizeof(tag));
  return tag | 1;  // 0 is the fabric's
}

result<sys::fabric_buffer> buffer_of(void* memory, std::uint64_t bytes, const staging::place& where) {
  if (!where.on_device()) return sys::fabric_buffer{memory, bytes, false};
  const auto found = where.via->session().network_address(memory, bytes);
  if (!found) return found.error();
  return sys::fabric_buffer{*found, bytes, !where.emulated()};
}

}  // namespace

// --- lines

result<std::shared_ptr<sys::fabric>> session::fabric_for(const staging::place& where) {
  if (!where.on_device() || where.emulated()) return with_.fabrics->of_host();
  const auto name = core::name_of(where);
  for (const auto& each : with_.runtime->memory().devices()) {
    if (each.name == name) return with_.fabrics->of_gpu(where.via->session(), each.pci_bus_id);
  }
  return status(errc::not_found, fmt::format("{} is not known any more", name));
}

std::unique_ptr<sys::fabric_line> session::make_line(sys::fabric& by, std::uint32_t number, bool receives, status& problem) {
  auto made = by.make_line([pipe = weak_from_this(), number, receives](const status& why) {
    if (const auto self = pipe.lock(); self != nullptr) self->line_ended(number, receives, why);
  });
  if (made) return *std::move(made);
  problem = made.error();
  return nullptr;
}

// The line by which tensors of that device of the other end come to memory of this kind: it is offered when the first of them does.
result<std::shared_ptr<pipe_line>> session::line_from(const std::string& device, const staging::place& to) {
  const std::lock_guard making(making_lines_);
  auto by = fabric_for(to);
  if (!by) return by.error();
  auto line = std::make_shared<pipe_line>();
  {
    const std::lock_guard guard(lock_);
    for (const auto& each : lines_here_) {
      if (each->device != device || each->by != by->get()) continue;
      if (each->ended.ok()) return each;
      if (each->ended.code() == errc::unsupported) return each->ended;  // another would fare no better
    }
    if (auto gone = over(); !gone.ok()) return gone;
    if (lines_here_.size() == pipe_line::most) return status(errc::unsupported, "a pipe has no more lines than that");
    line->number = static_cast<std::uint32_t>(lines_here_.size());
  }
  line->device = device;
  line->by = by->get();
  line->over = make_line(**by, line->number, true, line->ended);
  const std::lock_guard guard(lock_);
  lines_here_.push_back(line);
  if (!line->ended.ok()) return line->ended;
  say(frame_kind::line, 0, channel::encode(channel::line_offer{device, line->over->address()}), 0, line->number);
  return line;
}

// By the receiver of this end's tensors. Making the line takes milliseconds: so before the pipe's lock is taken.
status session::line_offered(const channel::frame_head& head) {
  channel::line_offer offer;
  {
    const std::lock_guard guard(lock_);
    if (closed_) return {};
    auto told = channel::decode_line_offer(body_);
    if (!told) return told.error();
    offer = *std::move(told);
    const bool uses = std::any_of(receiving_.begin(), receiving_.end(), [](const auto& each) {
      return each.refusal.empty() && channel::find_channel(each.name)->how() == channel::carriage::fabric;
    });
    if (!ready_ || !uses || lines_there_.size() >= pipe_line::most || lines_there_.count(head.code) > 0) {
      return {errc::io, "the other end offered a line out of turn"};
    }
  }
  auto line = std::make_shared<pipe_line>();
  line->number = head.code;
  line->device = offer.device;
  const auto where = with_.runtime->memory().place_on(offer.device);
  if (where && where->on_device() && where->via == nullptr) {
    line->ended = {errc::unsupported, offer.device + " is not in use"};
  } else if (auto by = where ? fabric_for(*where) : result<std::shared_ptr<sys::fabric>>(where.error()); by) {
    line->by = by->get();
    line->over = make_line(**by, line->number, false, line->ended);
  } else {
    line->ended = by.error();
  }
  with_lock([&](endings& /*ended*/) {
    if (line->over == nullptr) {
      say(frame_kind::line_over, 0, line->ended, line->number);
    } else {
      line->ready = true;
      line->over->connect(std::move(offer.address));
      say(frame_kind::line_ready, 0, line->over->address(), 0, line->number);
      if (!over().ok()) line->over->end(over());
    }
    lines_there_.emplace(line->number, std::move(line));
  });
  return {};
}

status session::line_answered(const channel::frame_head& head, endings& ended) {
  if (head.code >= lines_here_.size() || lines_here_[head.code]->over == nullptr || lines_here_[head.code]->ready || body_.empty()) {
    return {errc::io, "the other end answered for a line that it was not offered"};
  }
  auto& line = *lines_here_[head.code];
  if (!line.ended.ok()) return {};
  line.over->connect(body_);
  line.ready = true;
  ask_those_begun(ended);
  return {};
}

// At the other end, which may know before this one.
status session::line_over(const channel::frame_head& head, endings& ended) {
  const auto why = channel::status_of(head.code == 0 ? channel::code_of({errc::closed, {}}) : head.code, body_);
  std::shared_ptr<pipe_line> line;
  if (head.message == 0 && head.part < lines_here_.size()) line = lines_here_[head.part];
  if (const auto found = lines_there_.find(head.part); head.message != 0 && found != lines_there_.end()) line = found->second;
  if (line == nullptr) return {errc::io, "the other end ended a line that there is none of"};
  if (line->ended.ok()) line->ended = why;
  if (line->over != nullptr) line->over->end(why);
  ask_those_begun(ended);
  return {};
}

// What was under way on it has been told already.
void session::line_ended(std::uint32_t number, bool receives, const status& why) noexcept {
  with_lock([&](endings& ended) {
    const auto there = lines_there_.find(number);
    const auto line = receives                      ? number < lines_here_.size() ? lines_here_[number] : nullptr
                      : there == lines_there_.end() ? nullptr
                                                    : there->second;
    if (line == nullptr || !std::exchange(line->ended, line->ended.ok() ? why : line->ended).ok()) return;
    say(frame_kind::line_over, receives ? 1 : 0, why, number);
    ask_those_begun(ended);
  });
}

void session::end_lines() noexcept {
  const std::lock_guard guard(lock_);
  const auto why = over();
  for (const auto& each : lines_here_) {
    if (each->over != nullptr) each->over->end(why);
  }
  for (const auto& [number, each] : lines_there_) {
    if (each->over != nullptr) each->over->end(why);
  }
}

// --- receiving

void session::ask_those_begun(endings& ended) {
  for (const auto& [number, op] : receiving_now_) {
    if (op->begun) ask(*op, ended);
  }
}

// The next piece of a tensor. False: not now, or no more.
bool session::ask_by_line(receive_operation& op, std::size_t tensor, endings& ended) {
  const auto& line = op.lines[tensor];
  if (!line->ended.ok()) {
    const bool from_device = !op.message->facts.tensors[tensor].device.empty();
    const auto* const instead = op.next_offset == 0 ? sends_instead(from_device, op.places[tensor].on_device()) : nullptr;
    if (instead == nullptr) {
      abandon(op, line->ended, ended);
      return false;
    }
    op.by[tensor] = instead;
    op.lines[tensor] = nullptr;
    return true;
  }
  if (!line->ready) return false;
  const auto length = op.targets[tensor].length;
  const auto bytes = std::min(limits::piece_bytes, length - op.next_offset);
  const auto target = buffer_of(static_cast<std::byte*>(op.targets[tensor].memory) + op.next_offset, bytes, op.places[tensor]);
  const auto tag = draw_tag();
  if (!target || !tag) {
    abandon(op, target ? tag.error() : target.error(), ended);
    return false;
  }
  std::list<received_by_line> added(1);
  auto& piece = added.front();
  piece.of = &op;
  piece.on = line;
  piece.tag = *tag;
  piece.number = line->over->receive(*tag, *target, [&piece](const status& outcome) { piece.of->owner().come(piece, outcome); });
  op.on_lines.splice(op.on_lines.end(), added);
  op.asks_for(bytes, length);
  say(frame_kind::wanted_by_line, op.message->number, channel::encode_tag(*tag), tensor, line->number);
  return true;
}

void session::arrived(receive_operation& op, const received_by_line& piece, endings& ended) {
  op.on_lines.remove_if([&](const auto& each) { return &each == &piece; });
  --op.pieces_left;
  ended.of_parts.emplace_back(&op, 1);
}

// On the fabric's thread.
void session::come(received_by_line& piece, const status& outcome) noexcept {
  auto& op = *piece.of;
  with_lock([&](endings& ended) {
    piece.come = true;
    if (outcome.ok() && !piece.answered && !op.stopping.load()) return;  // the sender has not said yet that it counts
    arrived(op, piece, ended);
    if (!outcome.ok() && !op.stopping.load()) abandon(op, outcome, ended);
    if (!op.stopping.load()) ask(op, ended);
  });
}

status session::answered_by_line(const channel::frame_head& head, endings& ended) {
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end()) return {};
  auto& op = *found->second;
  const auto piece =
      std::find_if(op.on_lines.begin(), op.on_lines.end(), [&](const auto& each) { return each.tag == head.part && !each.answered; });
  if (piece == op.on_lines.end()) return {};
  piece->answered = true;
  if (head.code != 0) {
    if (!piece->come) piece->on->over->cancel(piece->number);
    abandon(op, channel::status_of(head.code, body_), ended);
  } else if (piece->come) {
    arrived(op, *piece, ended);
    ask(op, ended);
  }
  return {};
}

// What has come does not count any more; what is on its way goes on writing until the fabric says that it does not.
void session::abandon_on_lines(receive_operation& op) {
  op.on_lines.remove_if([](const auto& each) { return each.come; });
  for (const auto& each : op.on_lines) each.on->over->limit(pipe_line::most_draining);
}

// --- sending

status session::wanted_by_line(const channel::frame_head& head, endings& ended) {
  const auto tag = channel::decode_tag(body_);
  if (!tag) return tag.error();
  const auto refuse = [&](const status& why) { say(frame_kind::sent_by_line, head.message, why, *tag); };
  const auto found = announced_.find(head.message);
  if (found == announced_.end() || found->second->in_line || found->second->pushing) {
    refuse({errc::closed, "the message was taken back"});
    return {};
  }
  auto& op = *found->second;
  const auto line = lines_there_.find(head.code);
  if (head.part >= op.places.size() || line == lines_there_.end() || line->second->device != op.facts[head.part].device) {
    return {errc::io, "the other end asked for a tensor that there is none of, over a line"};
  }
  const auto& tensor = op.message.tensors[head.part];
  auto& asked = op.asked_bytes[head.part];
  if (asked == tensor.length) return {errc::io, "the other end asked for more of a tensor than there is"};
  if (!line->second->ended.ok() || line->second->over == nullptr) {
    refuse(line->second->ended);
    return {};
  }
  const auto bytes = std::min(limits::piece_bytes, tensor.length - asked);
  const auto from = buffer_of(static_cast<std::byte*>(const_cast<void*>(tensor.memory)) + asked, bytes, op.places[head.part]);
  if (!from) {
    refuse(from.error());
    say(frame_kind::withdrawn, op.number, from.error());
    end(op, {0, from.error()}, ended);
    return {};
  }
  std::list<sent_by_line> added(1);
  auto& piece = added.front();
  piece.of = &op;
  piece.on = line->second;
  piece.tag = *tag;
  piece.on->over->send(*tag, *from, [&piece](const status& outcome) { piece.of->owner().left(piece, outcome); });
  op.on_lines.splice(op.on_lines.end(), added);
  asked += bytes;
  return {};
}

// On the fabric's thread.
void session::left(sent_by_line& piece, const status& outcome) noexcept {
  auto& op = *piece.of;
  with_lock([&](endings& ended) {
    const auto tag = piece.tag;
    op.on_lines.remove_if([&](const auto& each) { return &each == &piece; });
    say(frame_kind::sent_by_line, op.number, outcome, tag);
    if (op.ended) {
      if (op.at_rest()) ended.told.emplace_back(&op, std::move(op.outcome_then));
    } else if (!outcome.ok()) {
      say(frame_kind::withdrawn, op.number, outcome);
      end(op, {0, outcome}, ended);
    }
  });
}

}  // namespace penstock::pipes
