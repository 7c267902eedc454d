// The door to TLS: OpenSSL's libssl, opened when it is first asked for, so that nobody else needs it. TLS 1.3 alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::sys {

class tls_context;

// What one connection says, encrypted. Thread-safe; no call blocks. An error of sending is the same for every send() from then on, one of
// receiving for every receive(), and one of agreeing for both. permission_denied: one end does not accept the other's certificate; io: what
// has come was changed on its way, or the connection was cut.
class tls_stream {
 public:
  struct state;
  tls_stream(std::shared_ptr<const tls_context> of, std::unique_ptr<state> made, std::string name);
  tls_stream(const tls_stream&) = delete;
  tls_stream& operator=(const tls_stream&) = delete;
  ~tls_stream();

  // As of peer, over this socket: the first call of who has connected begins. send() counts bytes once all of what they became has left;
  // until then it says would_block, and has to be called with the same bytes again, or others in their place, which it takes for them.
  result<std::size_t> send(peer& door, int fd, std::span<const iovec> parts);
  result<std::size_t> receive(peer& door, int fd, const iovec& part);
  // Tells the other end that nothing follows, whose receive() then has 0: without that it takes an end of the socket for a cut. What is not
  // out yet is left to flush(). Nothing may be sent after this.
  void end(peer& door, int fd) noexcept;
  // Sends what is left of what send() and receive() had to say.
  void flush(peer& door, int fd) noexcept;
  // There is some: the socket had no room.
  [[nodiscard]] bool has_unsent() noexcept;
  // What send() has taken, and said would_block for.
  [[nodiscard]] bool has_taken() noexcept;
  // What send() waits for now: room in the socket, or what the other end says; or nothing, since another call has got it meanwhile.
  enum class awaited : std::uint8_t { nothing, room, other_end };
  [[nodiscard]] awaited waits_for() noexcept;
  // Bytes have come that receive() has not given.
  [[nodiscard]] bool has_unread() noexcept;
  // Encrypted bytes that have been taken from the socket so far.
  [[nodiscard]] std::uint64_t fetched() noexcept;
  // For a further connection between the same ends.
  [[nodiscard]] result<std::unique_ptr<tls_stream>> sibling() const;

 private:
  status agree(peer& door, int fd);
  status fail_to_send(status why);
  status fail_to_receive(status why);
  status fail_to_agree(status why);
  status fetch(peer& door, int fd);
  [[nodiscard]] status why_cut(const status& of_socket) const;
  void flush_locked(peer& door, int fd) noexcept;
  void put_out(peer& door, int fd);
  [[nodiscard]] bool all_is_out() const noexcept;

  const std::shared_ptr<const tls_context> of_;
  const std::string name_;  // that the other end's certificate is to have; empty: of who has accepted
  std::mutex lock_;         // guards what follows
  const std::unique_ptr<state> state_;
  bool agreed_ = false;
  bool is_plain_ = false;   // what came first is no TLS
  bool has_ended_ = false;  // this end has said so
  status not_sent_;         // from then on
  status not_received_;
  std::uint64_t fetched_ = 0;
  std::vector<std::byte> out_;  // encrypted
  std::size_t out_sent_ = 0;
  std::size_t taken_ = 0;  // bytes of which that is, by send()
};

// What one end uses for all of its connections. Thread-safe.
class tls_context : public std::enable_shared_from_this<tls_context> {
 public:
  // Files in PEM.
  struct options {
    std::string certificate{};  // of this end, with those between it and the authority; needed to accept
    std::string key{};          // to it
    std::string ca{};           // who signs the other ends'; empty: those whom the system trusts, and whoever connects needs none
    std::string server_name{};  // that a certificate is to have; empty: the host that one connects to
  };
  // Errors: unsupported (no libssl.so.3), invalid_argument (a file that cannot be read or used, a key to another certificate).
  static result<std::shared_ptr<const tls_context>> make(const options& how);
  struct contexts;
  tls_context(options how, std::unique_ptr<contexts> made);
  ~tls_context();

  [[nodiscard]] bool can_accept() const noexcept { return !how_.certificate.empty(); }
  // Whoever connects has to have a certificate.
  [[nodiscard]] bool asks_for_certificates() const noexcept { return !how_.ca.empty(); }
  [[nodiscard]] result<std::unique_ptr<tls_stream>> accept() const;
  [[nodiscard]] result<std::unique_ptr<tls_stream>> connect(const std::string& host) const;

 private:
  friend class tls_stream;
  [[nodiscard]] result<std::unique_ptr<tls_stream>> made(const std::string& name) const;

  const options how_;
  const std::unique_ptr<contexts> contexts_;
};

}  // namespace penstock::sys
