// The carrier for tensors that the receiver requests piece by piece. The pieces are sent over the pipe's connection or, between devices on
// one host that cannot access each other's memory, into the receiver's inbox. Pieces from and to device memory pass through pinned memory.
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
  // message, part: the tensor. A carrier that uses several connections has additional kinds.
  enum own_kind : std::uint8_t {
    wanted = 1,  // send its next piece. code: from piece_code()
    content,     // code: from the request. Body: the piece; empty if it is in the inbox
    unused,      // code: from the request. Nothing will be written to that slot
    inbox,       // the descriptor sent with this is for memory that the peer may write to. code: which devices use it (1: the host device)
    first_further,
  };
  class arriving;
  class leaving;
  // A piece in flight, at the sender or the receiver.
  struct piece {
    std::size_t tensor = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t code = 0;        // of the request frame
    staging::landing::lease room;  // the pinned memory that it passes through; null: none
    staging::copy_task task;
  };
  struct received_piece;
  struct sent_piece;

  // Returns the piece size for a tensor of this length. Both ends compute the same value.
  [[nodiscard]] virtual std::uint64_t piece_bytes(std::uint64_t /*length*/) const noexcept { return limits::piece_bytes; }
  // Returns how many pieces of one message may be in flight (requested or being copied) at once.
  [[nodiscard]] virtual std::size_t most_pieces() const noexcept { return usual_pieces; }
  // Returns true if pieces are written to inbox slots; code is then 0 or a slot's number plus one. Otherwise code is the piece's number.
  [[nodiscard]] virtual bool has_slots() const noexcept { return true; }
  virtual void send(outgoing_frame frame, staging::landing::lease room, endings& ended);
  // Stops all writes to this message's memory.
  virtual void divert(std::uint64_t message) { owner_.over()->divert(message); }

  static constexpr std::size_t usual_pieces = 12;

  // --- with the lock held
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
  // --- with the lock held
  std::shared_ptr<pipe_inbox> inbox_;      // the local inbox
  std::shared_ptr<pinned_region> outbox_;  // the peer's inbox
  bool want_slots_ = false;                // some messages found no free slot
};

}  // namespace penstock::channel
