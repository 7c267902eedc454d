#include "channel/pieces.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "staging/lanes.hpp"

namespace penstock::channel {

namespace {

// Waits for room in a landing, and retains the operation while it waits.
template <class Transfer>
struct room_waiter final : staging::landing::waiter {
  explicit room_waiter(Transfer& of) noexcept : owner(of) {}
  bool run() override {
    auto& operation = owner.message.operation;
    owner.go_on();
    operation.release();
    return true;
  }
  // Call with the pipe's lock held. Returns room, or null if there is none now; in that case go_on() is called later.
  result<staging::landing::lease> take(staging::landing& from, const staging::link& via) {
    owner.message.operation.retain();
    auto room = from.take(via, *this);
    waits = room && *room == nullptr;
    if (!waits) owner.message.operation.release();
    return room;
  }
  // Call with the pipe's lock held, while another reference keeps the operation.
  void forget(staging::landing& in) noexcept {
    if (std::exchange(waits, false) && in.forget(*this)) owner.message.operation.release();
  }
  Transfer& owner;
  bool waits = false;
};

// Submits the copy between a piece's pinned memory and device memory. The copy reports its completion to the piece.
template <class Piece>
void copy_over(Piece& piece, const staging::link& via, void* target, const void* source, bool to_device) {
  piece.task.target = target;
  piece.task.source = source;
  piece.task.bytes = piece.bytes;
  piece.task.to_device = to_device;
  piece.task.context = &piece;
  piece.task.done = [](staging::copy_task& done, status outcome) { static_cast<Piece*>(done.context)->copied(outcome); };
  via.feeder().submit(piece.task);
}

}  // namespace

// --- state of a message

// A piece that has been requested or is being copied into the target.
struct pieces::received_piece : piece {
  void copied(const status& outcome);
  // Lets a lane copy it to host memory. Returns false if no lane takes it.
  bool copy(staging::lanes& lanes, std::byte* target) {
    to_host.of = this;
    to_host.target = target;
    return lanes.push(to_host.list, to_host).ok();
  }

  arriving* of = nullptr;
  bool coming = false;  // its frame has started to arrive

 private:
  struct host_copy final : staging::work {
    bool run() override {
      std::memcpy(target, of->room.get(), of->bytes);
      of->copied({});
      return true;
    }
    received_piece* of = nullptr;
    std::byte* target = nullptr;
    staging::work_list list;
  };
  host_copy to_host;
};

// A piece on its way to the peer.
struct pieces::sent_piece : piece {
  void copied(const status& outcome);

  leaving* of = nullptr;
  bool in_inbox = false;  // room is a slot of the receiver's inbox; the piece is copied into it
};

class pieces::arriving final : public delivery {
 public:
  arriving(pieces& owner, incoming& of) noexcept : by(owner), message(of) {}
  [[nodiscard]] std::uint64_t parts() const noexcept override { return left; }
  void all_taken() override { by.offer_inbox(*this); }
  void ask(endings& ended) override { by.ask(*this, ended); }
  std::uint64_t abandon() noexcept override { return by.abandon(*this); }
  void go_on() noexcept { by.go_on(*this); }

  // Adds a tensor and returns its number of pieces.
  std::uint64_t add(std::size_t tensor) {
    const auto each = by.piece_bytes(message.targets[tensor].length);
    const auto count = (message.targets[tensor].length + each - 1) / each;
    tensors.push_back(tensor);
    left += count;
    return count;
  }
  // Returns the first requested piece with these values.
  std::list<received_piece>::iterator find(const frame_head& head, bool coming) {
    return std::find_if(asked.begin(), asked.end(), [&](const received_piece& each) {
      return each.tensor == head.part && each.code == head.code && each.coming == coming;
    });
  }
  // Returns the address at which its bytes arrive.
  [[nodiscard]] std::span<std::byte> room_of(const received_piece& piece) const noexcept {
    auto* const target = static_cast<std::byte*>(message.targets[piece.tensor].memory) + piece.offset;
    return {piece.room != nullptr ? piece.room.get() : target, piece.bytes};
  }

  pieces& by;
  incoming& message;
  std::vector<std::size_t> tensors;
  std::size_t next = 0;             // index of the next tensor to request
  std::uint64_t next_offset = 0;    // in that tensor
  std::uint64_t left = 0;           // pieces not yet completed
  std::list<received_piece> asked;  // the pieces of each tensor, in the order in which they will arrive
  std::list<received_piece> copying;
  room_waiter<arriving> again{*this};
};

class pieces::leaving final : public departure {
 public:
  leaving(pieces& owner, outgoing& of) noexcept : by(owner), message(of) {}
  [[nodiscard]] bool at_rest() const noexcept override { return copying.empty(); }
  void go_on() noexcept { by.go_on(*this); }

  pieces& by;
  outgoing& message;
  std::list<sent_piece> waiting;  // for room
  std::list<sent_piece> copying;
  room_waiter<leaving> again{*this};
};

void pieces::received_piece::copied(const status& outcome) { of->by.copied(*this, outcome); }

void pieces::sent_piece::copied(const status& outcome) { of->by.copied(*this, outcome); }

// --- requests, at the receiver

pieces::arriving& pieces::arriving_of(incoming& message) {
  return message.delivery_of<arriving>(this, [&] { return std::make_unique<arriving>(*this, message); });
}

delivery& pieces::delivery_of(incoming& message) { return arriving_of(message); }

std::optional<std::string> pieces::take(incoming& message, std::size_t tensor) {
  (void)arriving_of(message).add(tensor);
  return std::nullopt;
}

std::uint64_t pieces::take_over(incoming& message, std::size_t tensor) { return arriving_of(message).add(tensor); }

// Offers memory that the sender's devices can reach, once, when the first tensor arrives that needs it.
void pieces::offer_inbox(const arriving& of) {
  const auto& tensors = of.message.tensors;
  const auto from_device = [&](std::size_t each) { return !tensors[each].device.empty(); };
  const auto first = std::find_if(of.tensors.begin(), of.tensors.end(), from_device);
  if (first == of.tensors.end() || !has_slots() || !owner_.over()->has_ring()) return;
  std::shared_ptr<pipe_inbox> inbox_here;
  if (!inbox_tried_.exchange(true)) {
    sys::owned_descriptor descriptor;
    inbox_here = pipe_inbox::make(*with_.door, with_.staging->inboxes(), descriptor);
    if (inbox_here == nullptr || !owner_.over()->pass(descriptor.get())) return;
    const std::lock_guard guard(owner_.lock());
    inbox_ = inbox_here;
    say(inbox, 0, {}, 0, is_of_host_device(tensors[*first].device) ? 1 : 0);
  } else {
    const std::lock_guard guard(owner_.lock());
    inbox_here = inbox_;
  }
  for (const auto each : of.tensors) {
    if (inbox_here != nullptr && of.message.places[each].on_device()) (void)inbox_here->region().pin_for(*of.message.places[each].via);
  }
}

// Finds the pinned memory that the piece passes through, if it needs any. Returns false if none is available now.
result<bool> pieces::make_room(arriving& of, received_piece& piece) {
  const auto& to = of.message.places[piece.tensor];
  const bool from_device = !of.message.tensors[piece.tensor].device.empty();
  if (from_device && inbox_ != nullptr && (!to.on_device() || inbox_->region().pinned_for(*to.via))) {
    auto slot = inbox_->lend();
    want_slots_ = want_slots_ || !slot;
    if (!slot) return false;
    piece.room = std::move(slot->memory);
    piece.code = slot->number + 1;
    return true;
  }
  if (!to.on_device()) return true;
  auto room = of.again.take(with_.staging->receiving(), *to.via);
  if (!room) return room.error();
  piece.room = *std::move(room);
  return piece.room != nullptr;
}

void pieces::ask(arriving& of, endings& ended) {
  while (of.next < of.tensors.size() && of.asked.size() + of.copying.size() < most_pieces() && !of.again.waits) {
    const auto tensor = of.tensors[of.next];
    const auto length = of.message.targets[tensor].length;
    const auto most = piece_bytes(length);
    std::list<received_piece> added(1);
    auto& piece = added.front();
    piece.of = &of;
    piece.tensor = tensor;
    piece.offset = of.next_offset;
    piece.bytes = std::min(most, length - of.next_offset);
    if (!has_slots()) piece.code = static_cast<std::uint32_t>(of.next_offset / most);
    const auto room = make_room(of, piece);
    if (!room) owner_.abandon(of.message, room.error(), ended);
    if (!room || !*room) return;
    of.next_offset += piece.bytes;
    if (of.next_offset == length) {
      ++of.next;
      of.next_offset = 0;
    }
    of.asked.splice(of.asked.end(), added);
    say(wanted, of.message.number, {}, tensor, piece.code);
  }
}

// Inbox slots may be free again.
void pieces::ask_all(endings& ended) {
  if (!std::exchange(want_slots_, false)) return;
  for (auto* const message : owner_.all_begun()) message->for_deliveries([&](delivery& each) { each.ask(ended); });
}

void pieces::go_on(arriving& of) noexcept {
  with_lock([&](endings& ended) {
    of.again.waits = false;
    ask(of, ended);
  });
}

std::uint64_t pieces::abandon(arriving& of) noexcept {
  const auto gone = of.left - of.copying.size();
  of.left = of.copying.size();
  of.next = of.tensors.size();
  of.again.forget(with_.staging->receiving());
  divert(of.message.number);
  of.asked.clear();
  return gone;
}

// --- arrivals

// A piece that arrives twice, or that was not requested, would overwrite memory that may be in use for something else.
result<std::span<std::byte>> pieces::room_for(const frame_head& head) {
  auto* const message = owner_.find_incoming(head.message);
  if (message == nullptr) return std::span<std::byte>();  // the message was abandoned
  auto* const of = message->find_delivery<arriving>(*this);
  if ((of == nullptr || of->asked.empty()) && message->stopping.load()) return std::span<std::byte>();
  if (of == nullptr) return out_of_turn("a piece of a tensor");
  const auto asked = of->find(head, false);
  if (asked == of->asked.end() || asked->bytes != head.length) return out_of_turn("a piece of a tensor");
  asked->coming = true;
  return of->room_of(*asked);
}

result<frame_room> pieces::begins(const frame_head& head) {
  switch (own_kind_of_frame(head.kind)) {
    case content: {
      const bool in_slot = head.length == 0 && has_slots() && head.code > 0;
      if (head.length > limits::piece_bytes || (head.length == 0 && !in_slot)) return out_of_turn("a piece of a tensor");
      if (in_slot) return frame_room{};
      const auto room = room_for(head);
      if (!room) return room.error();
      return frame_room{*room};
    }
    case wanted:
      break;
    case unused:
    case inbox:
      if (!has_slots()) return out_of_turn("a message about an inbox");
      break;
    default:
      return out_of_turn("a frame of an unknown kind");
  }
  if (head.length > 0) return out_of_turn("a body");
  return frame_room{};
}

status pieces::arrived(const frame_head& head, std::span<const std::byte> /*body*/) {
  const auto kind = own_kind_of_frame(head.kind);
  if (kind == inbox) {
    auto wrong = inbox_offered(head.code != 0);
    owner_.over()->flush();  // a wakeup that was read may have announced room
    return wrong;
  }
  status wrong;
  with_lock([&](endings& ended) {
    if (!owner_.hears()) return;
    if (kind == wanted) wrong = asked(head, ended);
    if (kind == content) wrong = come(head, ended);
    if (kind == unused) wrong = answered(head.code, ended);
  });
  return wrong;
}

status pieces::come(const frame_head& head, endings& ended) {
  auto* const message = owner_.find_incoming(head.message);
  if (auto* const of = message == nullptr ? nullptr : message->find_delivery<arriving>(*this); of != nullptr) {
    const auto piece = of->find(head, head.length > 0);
    if (piece != of->asked.end()) piece_came(*of, piece, ended);  // otherwise it was abandoned
  }
  return has_slots() ? answered(head.code, ended) : status();
}

void pieces::piece_came(arriving& of, std::list<received_piece>::iterator come, endings& ended) {
  auto& piece = *come;
  if (piece.room == nullptr) {
    of.asked.erase(come);
    --of.left;
    ended.of_parts.emplace_back(&of.message, 1);
    ask(of, ended);
    return;
  }
  of.copying.splice(of.copying.end(), of.asked, come);
  auto* const target = static_cast<std::byte*>(of.message.targets[piece.tensor].memory) + piece.offset;
  const auto& to = of.message.places[piece.tensor];
  if (to.on_device()) {
    copy_over(piece, *to.via, target, piece.room.get(), true);
    with_.runtime->feeders().attend();
  } else if (!piece.copy(with_.staging->pullers(), target)) {
    std::memcpy(target, piece.room.get(), piece.bytes);
    is_there(piece, {}, ended);
  }
}

void pieces::is_there(received_piece& piece, const status& outcome, endings& ended) {
  auto& of = *piece.of;
  of.copying.remove_if([&](const auto& each) { return &each == &piece; });
  --of.left;
  ended.of_parts.emplace_back(&of.message, 1);
  if (!outcome.ok()) owner_.abandon(of.message, outcome, ended);
  ask(of, ended);
  ask_all(ended);
}

void pieces::copied(received_piece& piece, const status& outcome) noexcept {
  with_lock([&](endings& ended) { is_there(piece, outcome, ended); });
}

// The peer has written to a slot lent to it, or will not use the slot.
status pieces::answered(std::uint32_t code, endings& ended) {
  if (code == 0) return {};
  if (inbox_ == nullptr || !inbox_->answered(code - 1)) return {errc::io, "the peer reported on an inbox slot that it was not lent"};
  ask_all(ended);
  return {};
}

// --- at the sender

// Reports that the inbox slot will not be used, because the peer waits for a report.
void pieces::say_unused(std::uint32_t code) {
  if (has_slots() && code > 0) say(unused, 0, {}, 0, code);
}

// The peer offers memory for the pieces that it requests. Giving the sending devices access takes time, so this happens before the pipe's
// lock is taken.
status pieces::inbox_offered(bool to_host_device) {
  const auto passed = owner_.over()->take_passed();
  if (passed.get() < 0) return {errc::io, "the peer offered memory without a descriptor"};
  auto mapped = with_.door->map_region(passed.get(), pipe_inbox::bytes);
  if (!mapped) return {};  // the pieces use the connection
  auto region = std::make_shared<pinned_region>(*std::move(mapped));
  const staging::link* via = nullptr;
  {
    const std::lock_guard guard(owner_.lock());
    via = owner_.sending_device(to_host_device);
  }
  if (via == nullptr || !region->pin_for(*via)) return {};
  const std::lock_guard guard(owner_.lock());
  outbox_ = std::move(region);
  return {};
}

status pieces::asked(const frame_head& head, endings& ended) {
  auto* const message = owner_.find_outgoing(head.message);
  if (message == nullptr) {
    say_unused(head.code);
    return {};
  }
  if (head.part >= message->places.size()) return {errc::io, "the peer requested a tensor that does not exist"};
  const auto& tensor = message->message.tensors[head.part];
  auto& asked = message->asked_bytes[head.part];
  if (asked == tensor.length) return {errc::io, "the peer requested bytes past the end of a tensor"};
  const auto most = piece_bytes(tensor.length);
  if (!has_slots() && asked != most * head.code) return {errc::io, "the peer requested a piece out of order"};
  std::list<sent_piece> added(1);
  auto& piece = added.front();
  piece.tensor = head.part;
  piece.offset = asked;
  piece.bytes = std::min(most, tensor.length - asked);
  piece.code = head.code;
  asked += piece.bytes;
  if (message->places[head.part].on_device()) {
    auto& of = message->departure_of<leaving>(*this, [&] { return std::make_unique<leaving>(*this, *message); });
    piece.of = &of;
    of.waiting.splice(of.waiting.end(), added);
    start_copies(of, ended);
  } else {
    send_piece(*message, piece, {static_cast<const std::byte*>(tensor.memory) + piece.offset, piece.bytes}, {}, ended);
  }
  return {};
}

void pieces::start_copies(leaving& of, endings& ended) {
  while (!of.waiting.empty() && !of.again.waits) {
    auto& piece = of.waiting.front();
    const auto& via = *of.message.places[piece.tensor].via;
    piece.in_inbox = has_slots() && piece.code > 0 && piece.code <= pipe_inbox::slots && outbox_ != nullptr && outbox_->pinned_for(via);
    if (piece.in_inbox) {
      piece.room = {outbox_, outbox_->data() + (piece.code - 1) * pipe_inbox::slot_bytes};
    } else {
      auto room = of.again.take(with_.staging->sending(), via);
      if (!room) {
        owner_.withdraw(of.message, room.error(), ended);
        return;
      }
      if (*room == nullptr) return;
      piece.room = *std::move(room);
    }
    of.copying.splice(of.copying.end(), of.waiting, of.waiting.begin());
    const auto* const source = static_cast<const std::byte*>(of.message.message.tensors[piece.tensor].memory) + piece.offset;
    copy_over(piece, via, piece.room.get(), source, false);
  }
  with_.runtime->feeders().attend();
}

void pieces::go_on(leaving& of) noexcept {
  with_lock([&](endings& ended) {
    of.again.waits = false;
    if (!of.message.has_ended()) start_copies(of, ended);
  });
}

// room: the body's memory, kept until the frame has been sent; null if the memory stays valid without it.
void pieces::send_piece(const outgoing& message, const piece& which, std::span<const std::byte> body, staging::landing::lease room,
                        endings& ended) {
  send({{kind_of(content), which.code, message.number, which.tensor, body.size()}, {}, body}, std::move(room), ended);
}

void pieces::send(outgoing_frame frame, staging::landing::lease room, endings& /*ended*/) {
  if (room != nullptr) frame.written = [kept = std::move(room)](const status& /*why*/) {};
  owner_.enqueue(std::move(frame));
}

void pieces::copied(sent_piece& piece, const status& outcome) noexcept {
  auto& of = *piece.of;
  with_lock([&](endings& ended) {
    std::list<sent_piece> done;
    done.splice(done.end(), of.copying,
                std::find_if(of.copying.begin(), of.copying.end(), [&](const auto& each) { return &each == &piece; }));
    if (of.message.has_ended()) {
      say_unused(piece.code);
      owner_.rests(of.message, ended);
    } else if (!outcome.ok()) {
      say_unused(piece.code);
      owner_.withdraw(of.message, outcome, ended);
    } else {
      const std::span<const std::byte> body(piece.room.get(), piece.in_inbox ? 0 : piece.bytes);
      send_piece(of.message, piece, body, piece.in_inbox ? nullptr : std::move(piece.room), ended);
    }
  });
}

void pieces::withdraw(outgoing& message) {
  auto* const of = message.find_departure<leaving>(*this);
  if (of == nullptr) return;
  for (const auto& each : of->waiting) say_unused(each.code);
  of->waiting.clear();
  of->again.forget(with_.staging->sending());
}

// Memory in use by pieces that are still being copied is freed together with those pieces.
void pieces::close() noexcept {
  std::shared_ptr<pipe_inbox> gone;
  std::shared_ptr<pinned_region> gone_there;
  const std::lock_guard guard(owner_.lock());
  gone.swap(inbox_);
  gone_there.swap(outbox_);
}

}  // namespace penstock::channel
