#include "channel/lines.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "channel/fabrics.hpp"
#include "sys/secret.hpp"

namespace penstock::channel {

namespace {

// Other processes cannot guess the tag, so they cannot write into a receive that uses it.
result<std::uint64_t> draw_tag() {
  const auto drawn = sys::random_digest();
  if (!drawn) return drawn.error();
  std::uint64_t tag = 0;
  std::memcpy(&tag, drawn->data(), sizeof(tag));
  return tag | 1;  // 0 is reserved by the fabric
}

result<sys::fabric_buffer> buffer_of(void* memory, std::uint64_t bytes, const staging::place& where) {
  if (!where.on_device()) return sys::fabric_buffer{memory, bytes, false};
  const auto found = where.via->session().network_address(memory, bytes);
  if (!found) return found.error();
  return sys::fabric_buffer{*found, bytes, !where.emulated()};
}

}  // namespace

// --- state of a message

class lines::arriving final : public delivery {
 public:
  static constexpr std::size_t most_pieces = 12;

  arriving(lines& owner, incoming& of) noexcept : by(owner), message(of) {}
  [[nodiscard]] std::uint64_t parts() const noexcept override { return left; }
  void ask(endings& ended) override { by.ask(*this, ended); }
  std::uint64_t abandon() noexcept override { return by.abandon(*this); }

  static std::uint64_t pieces_of(std::uint64_t length) { return (length + limits::piece_bytes - 1) / limits::piece_bytes; }

  struct taken {
    std::size_t tensor;
    std::shared_ptr<pipe_line> over;
  };
  lines& by;
  incoming& message;
  std::vector<taken> tensors;
  std::size_t next = 0;           // index of the next tensor to request
  std::uint64_t next_offset = 0;  // in that tensor
  std::uint64_t left = 0;         // pieces not yet completed
  std::list<received_piece> under_way;
};

class lines::leaving final : public departure {
 public:
  leaving(lines& owner, outgoing& of) noexcept : by(owner), message(of) {}
  [[nodiscard]] bool at_rest() const noexcept override { return under_way.empty(); }

  lines& by;
  outgoing& message;
  std::list<sent_piece> under_way;
};

lines::arriving& lines::arriving_of(incoming& message) {
  return message.delivery_of<arriving>(this, [&] { return std::make_unique<arriving>(*this, message); });
}

delivery& lines::delivery_of(incoming& message) { return arriving_of(message); }

std::optional<std::string> lines::take(incoming& message, std::size_t tensor) {
  auto line = line_from(message.tensors[tensor].device, message.places[tensor]);
  if (!line) return std::string(line.error().message());
  auto& of = arriving_of(message);
  of.tensors.push_back({tensor, *std::move(line)});
  of.left += arriving::pieces_of(message.targets[tensor].length);
  return std::nullopt;
}

// --- lines

result<std::shared_ptr<sys::fabric>> lines::fabric_for(const staging::place& where) {
  if (!where.on_device() || where.emulated()) return with_.fabrics->of_host();
  const auto name = core::name_of(where);
  for (const auto& each : with_.runtime->memory().devices()) {
    if (each.name == name) return with_.fabrics->of_gpu(where.via->session(), each.pci_bus_id);
  }
  return status(errc::not_found, fmt::format("{} is no longer in use", name));
}

std::unique_ptr<sys::fabric_line> lines::make_line(sys::fabric& by, std::uint32_t number, bool receives, status& problem) {
  auto made = by.make_line([this, pipe = owner_.handle(), number, receives](const status& why) {
    if (const auto kept = pipe.lock(); kept != nullptr) ended(number, receives, why);
  });
  if (made) return *std::move(made);
  problem = made.error();
  return nullptr;
}

// Returns the line for tensors from the peer's device to this kind of memory. The first such tensor makes the offer.
result<std::shared_ptr<pipe_line>> lines::line_from(const std::string& device, const staging::place& to) {
  const std::lock_guard making(making_);
  auto by = fabric_for(to);
  if (!by) return by.error();
  auto line = std::make_shared<pipe_line>();
  {
    const std::lock_guard guard(owner_.lock());
    for (const auto& each : here_) {
      if (each->device != device || each->by != by->get()) continue;
      if (each->ended.ok()) return each;
      if (each->ended.code() == errc::unsupported) return each->ended;  // another line would fail too
    }
    if (auto gone = owner_.why_over(); !gone.ok()) return gone;
    if (here_.size() == pipe_line::most) return status(errc::unsupported, "the pipe has reached its limit of network lines");
    line->number = static_cast<std::uint32_t>(here_.size());
  }
  line->device = device;
  line->by = by->get();
  line->over = make_line(**by, line->number, true, line->ended);
  const std::lock_guard guard(owner_.lock());
  here_.push_back(line);
  if (!line->ended.ok()) return line->ended;
  say(offer, 0, encode(line_offer{device, line->over->address()}), 0, line->number);
  return line;
}

// The receiver offers a line for tensors that this process sends. Creating it takes milliseconds, so that happens before the pipe's lock is
// taken.
status lines::offered(const frame_head& head, std::span<const std::byte> body) {
  line_offer told;
  {
    const std::lock_guard guard(owner_.lock());
    if (!owner_.hears()) return {};
    auto decoded = decode_line_offer(body);
    if (!decoded) return decoded.error();
    told = *std::move(decoded);
    if (!receives_there_ || there_.size() >= pipe_line::most || there_.count(head.code) > 0) {
      return {errc::io, "the peer offered a line out of turn"};
    }
  }
  auto line = std::make_shared<pipe_line>();
  line->number = head.code;
  line->device = told.device;
  const auto where = with_.runtime->memory().place_on(told.device);
  if (where && where->on_device() && where->via == nullptr) {
    line->ended = {errc::unsupported, told.device + " is not in use"};
  } else if (auto by = where ? fabric_for(*where) : result<std::shared_ptr<sys::fabric>>(where.error()); by) {
    line->by = by->get();
    line->over = make_line(**by, line->number, false, line->ended);
  } else {
    line->ended = by.error();
  }
  with_lock([&](endings& /*ended*/) {
    if (line->over == nullptr) {
      say_why(over, 0, line->ended, line->number);
    } else {
      line->ready = true;
      line->over->connect(std::move(told.address));
      say(ready, 0, line->over->address(), 0, line->number);
      if (const auto gone = owner_.why_over(); !gone.ok()) line->over->end(gone);
    }
    there_.emplace(line->number, std::move(line));
  });
  return {};
}

status lines::answered(const frame_head& head, std::span<const std::byte> body, endings& ended) {
  if (head.code >= here_.size() || here_[head.code]->over == nullptr || here_[head.code]->ready || body.empty()) {
    return {errc::io, "the peer accepted a line that it was not offered"};
  }
  auto& line = *here_[head.code];
  if (!line.ended.ok()) return {};
  line.over->connect({body.begin(), body.end()});
  line.ready = true;
  ask_all(ended);
  return {};
}

// The peer has closed the line, possibly before this end has noticed a failure.
status lines::is_over(const frame_head& head, std::span<const std::byte> body, endings& ended) {
  const auto why = status_of(head.code == 0 ? code_of({errc::closed, {}}) : head.code, body);
  std::shared_ptr<pipe_line> line;
  if (head.message == 0 && head.part < here_.size()) line = here_[head.part];
  if (const auto found = there_.find(head.part); head.message != 0 && found != there_.end()) line = found->second;
  if (line == nullptr) return {errc::io, "the peer closed a line that does not exist"};
  if (line->ended.ok()) line->ended = why;
  if (line->over != nullptr) line->over->end(why);
  ask_all(ended);
  return {};
}

// The fabric has already reported the operations that were in flight on the line.
void lines::ended(std::uint32_t number, bool receives, const status& why) noexcept {
  with_lock([&](endings& ended) {
    const auto found = there_.find(number);
    const auto line = receives ? number < here_.size() ? here_[number] : nullptr : found == there_.end() ? nullptr : found->second;
    if (line == nullptr || !std::exchange(line->ended, line->ended.ok() ? why : line->ended).ok()) return;
    say_why(over, receives ? 1 : 0, why, number);
    ask_all(ended);
  });
}

void lines::close() noexcept {
  const std::lock_guard guard(owner_.lock());
  const auto why = owner_.why_over();
  for (const auto& each : here_) {
    if (each->over != nullptr) each->over->end(why);
  }
  for (const auto& [number, each] : there_) {
    if (each->over != nullptr) each->over->end(why);
  }
}

// --- messages from the peer

result<frame_room> lines::begins(const frame_head& head) {
  switch (own_kind_of_frame(head.kind)) {
    case offer:
    case ready:
      return frame_room{{}, limits::line_bytes};
    case over:
    case sent:
      return frame_room{{}, limits::text_bytes};
    case wanted:
      return frame_room{{}, sizeof(std::uint64_t)};
    default:
      return out_of_turn("a frame of an unknown kind");
  }
}

status lines::arrived(const frame_head& head, std::span<const std::byte> body) {
  const auto kind = own_kind_of_frame(head.kind);
  if (kind == offer) return offered(head, body);
  status wrong;
  with_lock([&](endings& ended) {
    if (!owner_.hears()) return;
    if (kind == ready) wrong = answered(head, body, ended);
    if (kind == over) wrong = is_over(head, body, ended);
    if (kind == wanted) wrong = asked(head, body, ended);
    if (kind == sent) wrong = has_left(head, body, ended);
  });
  return wrong;
}

// --- receiving

void lines::ask_all(endings& ended) {
  for (auto* const message : owner_.all_begun()) message->for_deliveries([&](delivery& each) { each.ask(ended); });
}

// Other carriers request the tensors handed over to them once this carrier has finished with them.
void lines::ask(arriving& of, endings& ended) {
  bool handed_over = false;
  while (of.next < of.tensors.size() && of.under_way.size() < arriving::most_pieces && ask_for_piece(of, handed_over, ended)) {
  }
  if (!handed_over) return;
  of.message.for_deliveries([&](delivery& each) {
    if (&each != &of) each.ask(ended);
  });
}

// Requests the next piece of a tensor. Returns false if none can be requested now or none are left.
bool lines::ask_for_piece(arriving& of, bool& handed_over, endings& ended) {
  const auto [tensor, line] = of.tensors[of.next];
  const auto length = of.message.targets[tensor].length;
  if (!line->ended.ok()) {
    if (of.next_offset > 0 || !owner_.hand_over(of.message, tensor, ended)) {
      owner_.abandon(of.message, line->ended, ended);
      return false;
    }
    const auto pieces = arriving::pieces_of(length);
    of.left -= pieces;
    ++of.next;
    ended.of_parts.emplace_back(&of.message, pieces);
    handed_over = true;
    return true;
  }
  if (!line->ready) return false;
  const auto bytes = std::min(limits::piece_bytes, length - of.next_offset);
  const auto target =
      buffer_of(static_cast<std::byte*>(of.message.targets[tensor].memory) + of.next_offset, bytes, of.message.places[tensor]);
  const auto tag = draw_tag();
  if (!target || !tag) {
    owner_.abandon(of.message, target ? tag.error() : target.error(), ended);
    return false;
  }
  std::list<received_piece> added(1);
  auto& piece = added.front();
  piece.of = &of;
  piece.on = line;
  piece.tag = *tag;
  piece.number = line->over->receive(*tag, *target, [&piece](const status& outcome) { piece.of->by.come(piece, outcome); });
  of.under_way.splice(of.under_way.end(), added);
  of.next_offset += bytes;
  if (of.next_offset == length) {
    ++of.next;
    of.next_offset = 0;
  }
  say(wanted, of.message.number, encode_tag(*tag), tensor, line->number);
  return true;
}

void lines::piece_ended(arriving& of, const received_piece& piece, endings& ended) {
  of.under_way.remove_if([&](const auto& each) { return &each == &piece; });
  --of.left;
  ended.of_parts.emplace_back(&of.message, 1);
}

// Called on the fabric's thread.
void lines::come(received_piece& piece, const status& outcome) noexcept {
  auto& of = *piece.of;
  with_lock([&](endings& ended) {
    piece.come = true;
    const bool stopping = of.message.stopping.load();
    if (outcome.ok() && !piece.answered && !stopping) return;  // the sender has not confirmed it yet
    piece_ended(of, piece, ended);
    if (!outcome.ok() && !stopping) owner_.abandon(of.message, outcome, ended);
    if (!of.message.stopping.load()) ask(of, ended);
  });
}

status lines::has_left(const frame_head& head, std::span<const std::byte> body, endings& ended) {
  auto* const message = owner_.find_incoming(head.message);
  auto* const of = message == nullptr ? nullptr : message->find_delivery<arriving>(*this);
  if (of == nullptr) return {};
  const auto piece =
      std::find_if(of->under_way.begin(), of->under_way.end(), [&](const auto& each) { return each.tag == head.part && !each.answered; });
  if (piece == of->under_way.end()) return {};
  piece->answered = true;
  if (head.code != 0) {
    if (!piece->come) piece->on->over->cancel(piece->number);
    owner_.abandon(*message, status_of(head.code, body), ended);
  } else if (piece->come) {
    piece_ended(*of, *piece, ended);
    ask(*of, ended);
  }
  return {};
}

// Pieces that have arrived are dropped from the count; those in flight may write until the fabric reports their completion.
std::uint64_t lines::abandon(arriving& of) noexcept {
  of.under_way.remove_if([](const auto& each) { return each.come; });
  for (const auto& each : of.under_way) each.on->over->limit(pipe_line::most_draining);
  const auto gone = of.left - of.under_way.size();
  of.left = of.under_way.size();
  of.next = of.tensors.size();
  return gone;
}

// --- sending

status lines::asked(const frame_head& head, std::span<const std::byte> body, endings& ended) {
  const auto tag = decode_tag(body);
  if (!tag) return tag.error();
  const auto refuse = [&](const status& why) { say_why(sent, head.message, why, *tag); };
  auto* const message = owner_.find_outgoing(head.message);
  if (message == nullptr) {
    refuse({errc::closed, "the message was withdrawn"});
    return {};
  }
  const auto line = there_.find(head.code);
  if (head.part >= message->places.size() || line == there_.end() || line->second->device != message->facts[head.part].device) {
    return {errc::io, "the peer requested a tensor that does not exist over a network line"};
  }
  const auto& tensor = message->message.tensors[head.part];
  auto& asked = message->asked_bytes[head.part];
  if (asked == tensor.length) return {errc::io, "the peer requested bytes past the end of a tensor"};
  if (!line->second->ended.ok() || line->second->over == nullptr) {
    refuse(line->second->ended);
    return {};
  }
  const auto bytes = std::min(limits::piece_bytes, tensor.length - asked);
  const auto from = buffer_of(static_cast<std::byte*>(const_cast<void*>(tensor.memory)) + asked, bytes, message->places[head.part]);
  if (!from) {
    refuse(from.error());
    owner_.withdraw(*message, from.error(), ended);
    return {};
  }
  auto& of = message->departure_of<leaving>(*this, [&] { return std::make_unique<leaving>(*this, *message); });
  std::list<sent_piece> added(1);
  auto& piece = added.front();
  piece.of = &of;
  piece.on = line->second;
  piece.tag = *tag;
  piece.on->over->send(*tag, *from, [&piece](const status& outcome) { piece.of->by.left(piece, outcome); });
  of.under_way.splice(of.under_way.end(), added);
  asked += bytes;
  return {};
}

// Called on the fabric's thread.
void lines::left(sent_piece& piece, const status& outcome) noexcept {
  auto& of = *piece.of;
  with_lock([&](endings& ended) {
    const auto tag = piece.tag;
    of.under_way.remove_if([&](const auto& each) { return &each == &piece; });
    say_why(sent, of.message.number, outcome, tag);
    if (of.message.has_ended()) {
      owner_.rests(of.message, ended);
    } else if (!outcome.ok()) {
      owner_.withdraw(of.message, outcome, ended);
    }
  });
}

void lines::withdraw(outgoing& message) {
  auto* const of = message.find_departure<leaving>(*this);
  if (of == nullptr) return;
  for (const auto& each : of->under_way) each.on->over->limit(pipe_line::most_draining);
}

}  // namespace penstock::channel
