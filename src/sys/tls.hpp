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
// was modified in transit, or the connection was interrupted).
class tls_stream {
 public:
  struct state;
  tls_stream(std::shared_ptr<const tls_context> of, std::unique_ptr<state> made, std::string name);
  tls_stream(const tls_stream&) = delete;
  tls_stream& operator=(const tls_stream&) = delete;
  ~tls_stream();

  // Like send() and receive() of peer, over this socket. The first call at the connecting end starts the handshake. send() counts bytes
  // only once they have been sent completely in encrypted form; until then it returns would_block. Then call it again, with the same bytes
  // or with others in their place: the bytes sent are those of the first call.
  result<std::size_t> send(peer& door, int fd, std::span<const iovec> parts);
  result<std::size_t> receive(peer& door, int fd, const iovec& part);
  // Notifies the peer that no more data follows, so that its receive() returns 0; otherwise the peer would treat the closed socket as an
  // interrupted connection. flush() sends any remaining bytes. Send nothing after this call.
  void end(peer& door, int fd) noexcept;
  // Sends the remaining output of send() and receive().
  void flush(peer& door, int fd) noexcept;
  // Returns true if encrypted bytes remain because the socket had no room.
  [[nodiscard]] bool has_unsent() noexcept;
  // Returns true if send() has accepted bytes for which it returned would_block.
  [[nodiscard]] bool has_taken() noexcept;
  // Returns what send() is waiting for: room in the socket, or bytes from the peer; nothing if another call has since made progress.
  enum class awaited : std::uint8_t { nothing, room, other_end };
  [[nodiscard]] awaited waits_for() noexcept;
  // Returns true if bytes have arrived that receive() has not returned yet.
  [[nodiscard]] bool has_unread() noexcept;
  // Returns the number of encrypted bytes read from the socket so far.
  [[nodiscard]] std::uint64_t fetched() noexcept;
  // Creates a stream for another connection between the same two ends.
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
  const std::string name_;  // required in the peer's certificate; empty at the accepting end
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
  std::size_t taken_ = 0;  // plaintext bytes in out_ that send() has not counted yet
};

// The configuration for all of one end's connections. Thread-safe.
class tls_context : public std::enable_shared_from_this<tls_context> {
 public:
  // Names of PEM files.
  struct options {
    std::string certificate{};  // the local certificate and its intermediates; required for accept()
    std::string key{};          // the certificate's private key
    std::string ca{};           // the peers' certificate authority; empty: the system's authorities, and clients need no certificate
    std::string server_name{};  // required in the peer's certificate; empty: the connection's host name
  };
  // Errors: unsupported (no libssl.so.3), invalid_argument (a file is unreadable or unusable, or the key does not match the certificate).
  static result<std::shared_ptr<const tls_context>> make(const options& how);
  struct contexts;
  tls_context(options how, std::unique_ptr<contexts> made);
  ~tls_context();

  [[nodiscard]] bool can_accept() const noexcept { return !how_.certificate.empty(); }
  // Returns true if clients must present a certificate.
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
