// The carrier of tensors that network cards move over fabric lines.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel/carrier.hpp"
#include "channel/line.hpp"

namespace penstock::channel {

class lines final : public carrier {
 public:
  using carrier::carrier;

  void agreed(const agreement& on) override { receives_there_ = on.sends; }
  std::optional<std::string> take(incoming& message, std::size_t tensor) override;
  delivery& delivery_of(incoming& message) override;
  void withdraw(outgoing& message) override;
  result<frame_room> begins(const frame_head& head) override;
  status arrived(const frame_head& head, std::span<const std::byte> body) override;
  void close() noexcept override;

 private:
  enum own_kind : std::uint8_t {
    offer = 1,  // code: number of a line on which the sender of this frame can receive. Body: line_offer
    ready,      // code: number of a line that the peer has offered. Body: the address of the local end
    over,       // part: number of a closed line; code and body: the reason. message: 1 if the sender of this frame offered it, else 0
    wanted,     // message, part: the tensor, code: the line: send its next piece there. Body: the tag to send it to
    sent,       // message, part: the tag. The piece has been sent; or code and body: why it will not be
  };
  class arriving;
  class leaving;
  using received_piece = line_piece<arriving>;
  using sent_piece = line_piece<leaving>;

  arriving& arriving_of(incoming& message);
  result<std::shared_ptr<sys::fabric>> fabric_for(const staging::place& where);
  std::unique_ptr<sys::fabric_line> make_line(sys::fabric& by, std::uint32_t number, bool receives, status& problem);
  result<std::shared_ptr<pipe_line>> line_from(const std::string& device, const staging::place& to);
  status offered(const frame_head& head, std::span<const std::byte> body);
  void ended(std::uint32_t number, bool receives, const status& why) noexcept;
  // --- with the lock held
  status answered(const frame_head& head, std::span<const std::byte> body, endings& ended);
  status is_over(const frame_head& head, std::span<const std::byte> body, endings& ended);
  // At the receiver.
  void ask(arriving& of, endings& ended);
  bool ask_for_piece(arriving& of, bool& handed_over, endings& ended);
  void ask_all(endings& ended);
  std::uint64_t abandon(arriving& of) noexcept;
  static void piece_ended(arriving& of, const received_piece& piece, endings& ended);
  void come(received_piece& piece, const status& outcome) noexcept;
  status has_left(const frame_head& head, std::span<const std::byte> body, endings& ended);
  // At the sender.
  status asked(const frame_head& head, std::span<const std::byte> body, endings& ended);
  void left(sent_piece& piece, const status& outcome) noexcept;

  std::mutex making_;  // taken before the pipe's lock: one line is created at a time
  // --- with the lock held
  bool receives_there_ = false;                                // the peer may offer lines
  std::vector<std::shared_ptr<pipe_line>> here_;               // lines for receiving, by number
  std::map<std::uint64_t, std::shared_ptr<pipe_line>> there_;  // lines for sending, by the peer's number
};

}  // namespace penstock::channel
