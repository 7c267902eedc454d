// Where the other end of one pipe makes further connections: a socket of its own, at the address that the pipe's connection has led to, so
// that it needs nobody in accept(), holds up nobody else's, and stays when the pipe's listener has gone. Each token lets one connection in.
// Who brings none is shut out without a word; of those who have not said yet which they bring only so many are kept. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "channel/connection.hpp"
#include "channel/reactor.hpp"
#include "channel/wire.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// What is said on a further connection. None of it is a frame_kind: who takes it for a pipe's own is a stranger.
enum class stripe_frame : std::uint32_t {
  joins = 0x1000,  // the first frame, of who makes it. Body: a token of the offer. And the other end's answer: no body
  piece,           // message, part, code: of what was wanted. Body: the piece
  farewell,        // the last frame: the pipe is closed
};

// Who has opened it. Called on the reactor's thread.
class stripe_host {
 public:
  virtual ~stripe_host() = default;
  // which: token it has brought. Of what it says all but the first frame is still to be read.
  // secure: of a pipe that is encrypted.
  virtual void came(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure) noexcept = 0;
  // Nobody comes any more.
  virtual void door_failed(const status& why) noexcept = 0;
};

class stripe_door final : public socket_handler, public std::enable_shared_from_this<stripe_door> {
 public:
  static constexpr std::size_t most_strangers = 32;

  // at: port 0. own: the pipe's, like which those who come are to be encrypted. Closes by itself when all have come.
  static result<std::shared_ptr<stripe_door>> open(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with,
                                                   std::shared_ptr<connection> own, const sys::socket_address& at, std::size_t connections,
                                                   std::weak_ptr<stripe_host> of);
  stripe_door(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, std::shared_ptr<connection> own, sys::owned_descriptor socket,
              std::weak_ptr<stripe_host> of)
      : door_(std::move(door)), reactor_(std::move(with)), own_(std::move(own)), host_(std::move(of)), socket_(std::move(socket)) {}
  [[nodiscard]] const stripe_offer& offer() const noexcept { return offer_; }
  // Nobody is let in any more; strangers are shut out.
  void close() noexcept;
  next ready(bool readable, bool writable) noexcept override;

 private:
  class stranger;
  status accept_all();
  void heard(const std::shared_ptr<stranger>& who) noexcept;
  void turn_away(const std::shared_ptr<stranger>& who) noexcept;
  [[nodiscard]] std::size_t which(std::span<const std::byte> token) const noexcept;

  const std::shared_ptr<sys::peer> door_;
  const std::shared_ptr<reactor> reactor_;
  const std::shared_ptr<connection> own_;
  const std::weak_ptr<stripe_host> host_;
  stripe_offer offer_;
  std::mutex lock_;  // guards what follows
  sys::owned_descriptor socket_;
  std::uint64_t token_ = 0;
  bool closed_ = false;
  std::vector<bool> used_;                           // of the tokens
  std::deque<std::shared_ptr<stranger>> strangers_;  // the latest last
};

}  // namespace penstock::channel
