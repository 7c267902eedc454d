// Pipes: pieces of tensors that come over any of several connections.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "pipe/session.hpp"

namespace penstock::pipes {

using channel::carriage;
using channel::limits;
using channel::out_of_turn;

// How a tensor that comes by this channel is cut.
std::uint64_t session::piece_bytes(const channel::channel& by, std::uint64_t length) const noexcept {
  return by.how() == carriage::stripe && stripes_ != nullptr ? stripes_->piece_bytes(length) : limits::piece_bytes;
}

// Of one operation: each connection has one to go on with.
std::size_t session::most_pieces() const noexcept {
  return stripes_ == nullptr ? receive_operation::most_pieces
                             : std::max<std::size_t>(receive_operation::most_pieces, 2 * stripes_->agreed());
}

// With the lock. One that comes twice, or that nobody has asked for, would be written to memory that may be in use for something else.
result<std::span<std::byte>> session::room_for_piece(const channel::frame_head& head) {
  if (closed_ || cut_off_) return std::span<std::byte>();
  if (head.length == 0 || head.length > limits::piece_bytes) return out_of_turn("a piece of a tensor");
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end()) return std::span<std::byte>();  // it was stopped
  auto& op = *found->second;
  if (op.asked.empty() && op.stopping.load()) return std::span<std::byte>();
  const auto asked = op.asked_striped(head.part, head.code);
  if (asked == op.asked.end() || asked->coming || asked->bytes != head.length) return out_of_turn("a piece of a tensor");
  asked->coming = true;
  return op.room_of(*asked);
}

void session::striped_arrived(const channel::frame_head& head, endings& ended) {
  const auto found = receiving_now_.find(head.message);
  if (found == receiving_now_.end()) return;
  auto& op = *found->second;
  const auto come = op.asked_striped(head.part, head.code);
  if (come != op.asked.end() && come->coming) has_come(op, come, ended);  // else it was stopped
}

void session::divert(std::uint64_t message) {
  connection_->divert(message);
  if (stripes_ != nullptr) stripes_->divert(message);
}

// --- on the threads that read the further connections

result<std::span<std::byte>> session::piece_begins(const channel::frame_head& head) {
  const std::lock_guard guard(lock_);
  return room_for_piece(head);
}

status session::piece_arrived(const channel::frame_head& head) {
  with_lock([&](endings& ended) {
    if (!closed_ && !cut_off_) striped_arrived(head, ended);
  });
  return {};
}

// A pipe of which a part is missing goes no further. What the other end had said before over the pipe's own connection still counts, so the
// end is told when that ends too: the other end hears that nothing more will come from here. One that has said what it must not is not
// waited for.
void session::stripe_lost(const status& why) noexcept {
  const bool gone = why.code() == errc::closed;
  with_lock([&](endings& ended) {
    if (closed_ || !lost_.ok()) return;
    if (stripe_lost_.ok()) stripe_lost_ = why;
    say(channel::frame_kind::farewell, 0, why);
    if (gone) return;
    cut_off_ = true;
    end_all(status(why.code(), fmt::format("{}: {}", peer_name_, why.message())), ended);
  });
  if (gone) {
    connection_->end_sending();
  } else {
    connection_->close(with_.close_within);
    stripes_->close();
  }
}

void session::say_of_stripes(std::uint32_t code, std::vector<std::byte> body) {
  say(channel::frame_kind::stripes, 0, std::move(body), 0, code);
  connection_->flush();
}

status session::told_of_stripes(const channel::frame_head& head) {
  {
    const std::lock_guard guard(lock_);
    if (closed_ || cut_off_ || !ready_) return closed_ || cut_off_ ? status() : out_of_turn("word of further connections");
  }
  return stripes_->told(head, body_);
}

}  // namespace penstock::pipes
