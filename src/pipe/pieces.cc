// Pipes: tensors that are sent in pieces, at the end that asks for them.
#include <algorithm>
#include <utility>

#include "pipe/session.hpp"

namespace penstock::pipes {

using channel::frame_kind;
using channel::limits;

// Memory that the sender's devices reach too, once, when the first tensor comes that needs some.
void session::offer_inbox(const receive_operation& op) {
  const auto& tensors = op.message->facts.tensors;
  const auto from_device = [&](std::size_t each) { return !tensors[each].device.empty(); };
  const auto first = std::find_if(op.sent_tensors.begin(), op.sent_tensors.end(), from_device);
  if (first == op.sent_tensors.end() || !connection_->has_ring()) return;
  std::shared_ptr<pipe_inbox> inbox;
  if (!inbox_tried_.exchange(true)) {
    sys::owned_descriptor by;
    inbox = pipe_inbox::make(*with_.door, with_.staging->inboxes(), by);
    if (inbox == nullptr || !connection_->pass(by.get())) return;
    const std::lock_guard guard(lock_);
    inbox_ = inbox;
    say(frame_kind::inbox, 0, {}, 0, is_of_host_device(tensors[*first].device) ? 1 : 0);
  } else {
    const std::lock_guard guard(lock_);
    inbox = inbox_;
  }
  for (const auto each : op.sent_tensors) {
    if (inbox != nullptr && op.places[each].on_device()) (void)inbox->region().pin_for(*op.places[each].via);
  }
}

// Where the piece passes through, if it does. False: there is none now.
result<bool> session::make_room(receive_operation& op, received_piece& piece) {
  const auto& to = op.places[piece.tensor];
  const bool from_device = !op.message->facts.tensors[piece.tensor].device.empty();
  if (from_device && inbox_ != nullptr && (!to.on_device() || inbox_->region().pinned_for(*to.via))) {
    auto slot = inbox_->lend();
    want_slots_ = want_slots_ || !slot;
    if (!slot) return false;
    piece.room = std::move(slot->memory);
    piece.wanted = slot->number + 1;
    return true;
  }
  if (!to.on_device()) return true;
  auto room = op.again.take(with_.staging->receiving(), *to.via);
  if (!room) return room.error();
  piece.room = *std::move(room);
  return piece.room != nullptr;
}

void session::ask(receive_operation& op, endings& ended) {
  while (op.next_tensor < op.sent_tensors.size() && op.under_way() < most_pieces() && !op.again.waits) {
    const auto tensor = op.sent_tensors[op.next_tensor];
    if (op.lines[tensor] != nullptr) {
      if (!ask_by_line(op, tensor, ended)) return;
      continue;
    }
    const auto length = op.targets[tensor].length;
    const auto most = piece_bytes(*op.by[tensor], length);
    std::list<received_piece> added(1);
    auto& piece = added.front();
    piece.of = &op;
    piece.tensor = tensor;
    piece.offset = op.next_offset;
    piece.bytes = std::min(most, length - op.next_offset);
    piece.striped = op.by[tensor]->how() == channel::carriage::stripe;
    piece.number = piece.striped ? static_cast<std::uint32_t>(op.next_offset / most) : 0;
    const auto room = make_room(op, piece);
    if (!room) abandon(op, room.error(), ended);
    if (!room || !*room) return;
    op.asks_for(piece.bytes, length);
    op.asked.splice(op.asked.end(), added);
    say(piece.striped ? frame_kind::wanted_piece : frame_kind::wanted, op.message->number, {}, tensor,
        piece.striped ? piece.number : piece.wanted);
  }
}

// Slots of the inbox may be free again.
void session::ask_all(endings& ended) {
  if (!std::exchange(want_slots_, false)) return;
  for (const auto& [number, op] : receiving_now_) {
    if (op->begun) ask(*op, ended);
  }
}

void session::go_on(receive_operation& op) noexcept {
  with_lock([&](endings& ended) {
    op.again.waits = false;
    ask(op, ended);
  });
}

status session::answered(std::uint32_t wanted, endings& ended) {
  if (wanted == 0) return {};
  if (inbox_ == nullptr || !inbox_->answered(wanted - 1)) return {errc::io, "the other end answered for a slot that it was not lent"};
  ask_all(ended);
  return {};
}

status session::tensor_arrived(const channel::frame_head& head, endings& ended) {
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end()) return answered(head.code, ended);
  auto& op = *found->second;
  const auto come = op.asked_for(head.part, head.code);
  if (come == op.asked.end()) return answered(head.code, ended);  // it was stopped
  has_come(op, come, ended);
  return answered(head.code, ended);
}

void session::has_come(receive_operation& op, std::list<received_piece>::iterator come, endings& ended) {
  auto& piece = *come;
  if (piece.room == nullptr) {
    op.asked.erase(come);
    --op.pieces_left;
    ended.of_parts.emplace_back(&op, 1);
    ask(op, ended);
    return;
  }
  op.copying.splice(op.copying.end(), op.asked, come);
  auto* const target = static_cast<std::byte*>(op.targets[piece.tensor].memory) + piece.offset;
  const auto& to = op.places[piece.tensor];
  if (to.on_device()) {
    piece.copy(*to.via, target, piece.room.get(), true);
    with_.runtime->feeders().attend();
  } else {
    piece.copy(with_.staging->pullers(), target);
  }
}

void session::copied(received_piece& piece, const status& outcome) noexcept {
  auto& op = *piece.of;
  with_lock([&](endings& ended) {
    op.copying.remove_if([&](const auto& each) { return &each == &piece; });
    --op.pieces_left;
    ended.of_parts.emplace_back(&op, 1);
    if (!outcome.ok()) abandon(op, outcome, ended);
    ask(op, ended);
    ask_all(ended);
  });
}

}  // namespace penstock::pipes
