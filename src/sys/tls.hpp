// TLS through OpenSSL's libssl, which is loaded on first use, so that other programs do not need it. TLS 1.3 only.
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

// Encrypts one connection. Thread-safe; no call blocks. After a send error every later send() returns the same error; likewise for
// receive(). A handshake error applies to both. Errors: permission_denied (one end does not accept the other's certificate), io (the data
// was modified on its way, or the connection was cut).
class tls_stream {
 public:
  struct state;
  tls_stream(std::shared_ptr<const tls_context> of, std::unique_ptr<state> made, std::string name);
  tls_stream(const tls_stream&) = delete;
  tls_stream& operator=(const tls_stream&) = delete;
  ~tls_stream();

  // As in peer, over this socket. The first call at the connecting end starts the handshake. send() counts bytes only once all of their
  // encrypted form has left; until then it returns would_block. Call it again with the same bytes or with other bytes in their place: the
  // bytes that it took first are the ones sent.
  result<std::size_t> send(peer& door, int fd, std::span<const iovec> parts);
  result<std::size_t> receive(peer& door, int fd, const iovec& part);
  // Tells the other end that nothing follows, so that its receive() returns 0; otherwise it takes the end of the socket for a cut
  // connection. flush() sends what is left. Send nothing after this.
  void end(peer& door, int fd) noexcept;
  // Sends what is left of the output of send() and receive().
  void flush(peer& door, int fd) noexcept;
  // Encrypted bytes are left because the socket had no room.
  [[nodiscard]] bool has_unsent() noexcept;
  // send() has taken bytes for which it returned would_block.
  [[nodiscard]] bool has_taken() noexcept;
  // What send() waits for now: room in the socket, or bytes from the other end; nothing if another call has made progress meanwhile.
  enum class awaited : std::uint8_t { nothing, room, other_end };
  [[nodiscard]] awaited waits_for() noexcept;
  // Bytes have arrived that receive() has not returned yet.
  [[nodiscard]] bool has_unread() noexcept;
  // Encrypted bytes read from the socket so far.
  [[nodiscard]] std::uint64_t fetched() noexcept;
  // Makes a stream for another connection between the same ends.
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
  const std::string name_;  // required in the other end's certificate; empty at the accepting end
  std::mutex lock_;         // guards the members below
  const std::unique_ptr<state> state_;
  bool agreed_ = false;
  bool is_plain_ = false;   // the first bytes were not TLS
  bool has_ended_ = false;  // end() was called
  status not_sent_;         // the error of every later send()
  status not_received_;
  std::uint64_t fetched_ = 0;
  std::vector<std::byte> out_;  // encrypted
  std::size_t out_sent_ = 0;
  std::size_t taken_ = 0;  // plain bytes in it that send() has not counted yet
};

// The configuration that one end uses for all of its connections. Thread-safe.
class tls_context : public std::enable_shared_from_this<tls_context> {
 public:
  // File names; the files are in PEM format.
  struct options {
    std::string certificate{};  // this end's certificate and its intermediates; required for accept()
    std::string key{};          // the certificate's private key
    std::string ca{};           // the authority of the other ends; empty: the system's authorities, and connecting ends need no certificate
    std::string server_name{};  // required in the other end's certificate; empty: the host of the connection
  };
  // Errors: unsupported (no libssl.so.3), invalid_argument (a file is unreadable or unusable, or the key belongs to another certificate).
  static result<std::shared_ptr<const tls_context>> make(const options& how);
  struct contexts;
  tls_context(options how, std::unique_ptr<contexts> made);
  ~tls_context();

  [[nodiscard]] bool can_accept() const noexcept { return !how_.certificate.empty(); }
  // Connecting ends must present a certificate.
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
