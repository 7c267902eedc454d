// The carrier of tensors that the sender sends a piece at a time, as the receiver asks for them: over the pipe's connection, or, between
// devices that cannot reach each other's memory on one host, into an inbox of the receiver's. Pieces from and to memory of devices pass
// through pinned memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>

#include "channel/carrier.hpp"
#include "channel/inbox.hpp"
#include "staging/feeder.hpp"
#include "staging/landing.hpp"

namespace penstock::channel {

class pieces : public carrier {
 public:
  using carrier::carrier;

  std::optional<std::string> take(incoming& message, std::size_t tensor) override;
  delivery& delivery_of(incoming& message) override;
  std::uint64_t take_over(incoming& message, std::size_t tensor) override;
  void withdraw(outgoing& message) override;
  result<frame_room> begins(const frame_head& head) override;
  status arrived(const frame_head& head, std::span<const std::byte> body) override;
  void close() noexcept override;

 protected:
  // message, part: which tensor. A carrier over several connections has further ones.
  enum own_kind : std::uint8_t {
    wanted = 1,  // send the next piece of it. code: what piece_code() makes of it
    content,     // code: of what was wanted. Body: the piece; none where it lies in the inbox
    unused,      // code: of what was wanted: nothing will come to that slot
    inbox,       // the memory whose descriptor comes with it is there to be written to. code: whose devices use it (1: of the host device)
    first_further,
  };
  class arriving;
  class leaving;
  // One on its way, at either end.
  struct piece {
    std::size_t tensor = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t code = 0;        // of the frame that asks for it
    staging::landing::lease room;  // where it passes through pinned memory; null: it does not
    staging::copy_task task;
  };
  struct received_piece;
  struct sent_piece;

  // How a tensor of this length is cut, alike at both ends.
  [[nodiscard]] virtual std::uint64_t piece_bytes(std::uint64_t /*length*/) const noexcept { return limits::piece_bytes; }
  // Of one message, asked for or being copied.
  [[nodiscard]] virtual std::size_t most_pieces() const noexcept { return usual_pieces; }
  // Whether pieces go to slots of an inbox, and code is 0 or one more than a slot's number. Else it is the number of the piece.
  [[nodiscard]] virtual bool has_slots() const noexcept { return true; }
  virtual void send(outgoing_frame frame, staging::landing::lease room, endings& ended);
  // Nothing more is written to memory of this message.
  virtual void divert(std::uint64_t message) { owner_.over()->divert(message); }

  static constexpr std::size_t usual_pieces = 12;

  // --- with the lock
  [[nodiscard]] result<std::span<std::byte>> room_for(const frame_head& head);
  status come(const frame_head& head, endings& ended);

 private:
  arriving& arriving_of(incoming& message);
  // --- at the receiver
  void offer_inbox(const arriving& of);
  result<bool> make_room(arriving& of, received_piece& piece);
  void ask(arriving& of, endings& ended);
  void ask_all(endings& ended);
  std::uint64_t abandon(arriving& of) noexcept;
  void go_on(arriving& of) noexcept;
  void piece_came(arriving& of, std::list<received_piece>::iterator come, endings& ended);
  void is_there(received_piece& piece, const status& outcome, endings& ended);
  void copied(received_piece& piece, const status& outcome) noexcept;
  status answered(std::uint32_t code, endings& ended);
  // --- at the sender
  status asked(const frame_head& head, endings& ended);
  status inbox_offered(bool to_host_device);
  void start_copies(leaving& of, endings& ended);
  void go_on(leaving& of) noexcept;
  void send_piece(const outgoing& message, const piece& which, std::span<const std::byte> content, staging::landing::lease room,
                  endings& ended);
  void copied(sent_piece& piece, const status& outcome) noexcept;
  void say_unused(std::uint32_t code);

  std::atomic<bool> inbox_tried_{false};
  // --- with the lock
  std::shared_ptr<pipe_inbox> inbox_;      // of this end
  std::shared_ptr<pinned_region> outbox_;  // the other end's inbox
  bool want_slots_ = false;                // some messages found none free
};

}  // namespace penstock::channel
