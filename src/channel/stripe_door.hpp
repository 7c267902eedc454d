// Accepts the further connections that one pipe's peer makes. It has its own socket, at the local address of the pipe's connection, so it
// needs no thread in accept(), delays no other pipe, and can outlive the pipe's listener. Each token admits one connection. A connection
// without one is closed without a reply, and only a limited number may be open before they have sent one. Thread-safe.
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

// The frames on a further connection. Their values differ from every frame_kind, so a pipe rejects such a connection.
enum class stripe_frame : std::uint32_t {
  joins = 0x1000,  // the first frame, sent by the connecting end. Body: a token of the offer. The peer replies with an empty body
  piece,           // message, part, code: from the request. Body: the piece
  farewell,        // the last frame: the pipe is closed
};

// The owner of a door. Its functions are called on the reactor's thread.
class stripe_host {
 public:
  virtual ~stripe_host() = default;
  // A connection was admitted. which: index of its token. Only the first frame has been read so far. secure: set if the pipe is encrypted.
  virtual void came(std::size_t which, sys::owned_descriptor over, std::unique_ptr<sys::tls_stream> secure) noexcept = 0;
  // No more connections will be admitted.
  virtual void door_failed(const status& why) noexcept = 0;
};

class stripe_door final : public socket_handler, public std::enable_shared_from_this<stripe_door> {
 public:
  static constexpr std::size_t most_strangers = 32;

  // at: an address with port 0. own: the pipe's connection; further ones are encrypted like it. Closes itself when all have connected.
  static result<std::shared_ptr<stripe_door>> open(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with,
                                                   std::shared_ptr<connection> own, const sys::socket_address& at, std::size_t connections,
                                                   std::weak_ptr<stripe_host> of);
  stripe_door(std::shared_ptr<sys::peer> door, std::shared_ptr<reactor> with, std::shared_ptr<connection> own, sys::owned_descriptor socket,
              std::weak_ptr<stripe_host> of)
      : door_(std::move(door)), reactor_(std::move(with)), own_(std::move(own)), host_(std::move(of)), socket_(std::move(socket)) {}
  [[nodiscard]] const stripe_offer& offer() const noexcept { return offer_; }
  // Admits no more connections, and closes those not yet admitted.
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
  std::mutex lock_;  // guards the members below
  sys::owned_descriptor socket_;
  std::uint64_t token_ = 0;
  bool closed_ = false;
  std::vector<bool> used_;                           // by token
  std::deque<std::shared_ptr<stranger>> strangers_;  // latest last
};

}  // namespace penstock::channel
