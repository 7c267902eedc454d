// The door to other processes: stream sockets, waiting for them, and reading another process's memory. Everything above asks this
// interface, so tests can make any call fail, fall short or come late. Every call is thread-safe unless it says otherwise. Sockets do not
// block and are closed on exec. A failed call returns the errno of that very call as a status whose message names the call.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::sys {

// Where a socket listens.
struct socket_address {
  enum class family : std::uint8_t { unix_path, unix_abstract, tcp };
  family kind = family::unix_abstract;
  std::string name;        // the path or the abstract name; of tcp the host, a name or a number
  std::uint16_t port = 0;  // of tcp; 0: the kernel chooses
};

// Who is at the other end of a unix socket, as the kernel knows it.
struct credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// A descriptor that is closed with this.
class owned_socket {
 public:
  owned_socket() noexcept = default;
  explicit owned_socket(int fd) noexcept : fd_(fd) {}
  owned_socket(owned_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  owned_socket& operator=(owned_socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_socket();
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

struct socket_event {
  std::uint64_t token = 0;
  bool readable = false;  // or ended
  bool writable = false;
};

// Waits for many sockets. wait() is for one thread at a time.
class poller {
 public:
  virtual ~poller() = default;
  // Tells of the socket by the token from now on: when it can be read, and, where writable, when it can be written.
  virtual status add(int fd, std::uint64_t token, bool writable) = 0;
  virtual status change(int fd, std::uint64_t token, bool writable) = 0;
  virtual void remove(int fd) noexcept = 0;
  // Blocks until there is something to tell, or interrupt(). Returns how many.
  virtual result<std::size_t> wait(std::span<socket_event> out) = 0;
  virtual void interrupt() noexcept = 0;
};

class peer {
 public:
  virtual ~peer() = default;
  // A unix path that a dead process has left behind is taken over. Errors: not_found (no such host), io (in use, ...).
  virtual result<owned_socket> listen(const socket_address& at) = 0;
  // The port that the kernel chose.
  virtual result<std::uint16_t> port_of(int listening) = 0;
  // would_block: nobody is waiting.
  virtual result<owned_socket> accept(int listening) = 0;
  // Begins to connect; can be written once that has ended, and connected() tells how. Looks up the name, which may block.
  virtual result<owned_socket> connect(const socket_address& to) = 0;
  virtual status connected(int fd) = 0;
  // Of a unix socket.
  virtual result<credentials> credentials_of(int fd) = 0;
  // Bytes; would_block when there is no room.
  virtual result<std::size_t> send(int fd, std::span<const iovec> parts) = 0;
  // Bytes, 0 at the end; would_block when there is nothing.
  virtual result<std::size_t> receive(int fd, std::span<const iovec> parts) = 0;
  // No more is sent, and what has been arrives. receiving_too: nor does anything come that has not come yet.
  virtual void finish(int fd, bool receiving_too) noexcept = 0;
  virtual result<std::unique_ptr<poller>> make_poller() = 0;
  // Reads another process's memory (process_vm_readv). A range that is not there is bad_memory; a process that may not be read,
  // permission_denied.
  virtual status read_memory(pid_t process, std::uint64_t address, std::byte* target, std::size_t bytes) = 0;
};

std::shared_ptr<peer> linux_peer();

// Of this machine since it was started. Empty where that is not known.
std::string boot_id();

}  // namespace penstock::sys
