// Communication with other processes: stream sockets, polling them, shared memory, and reading another process's memory. All other code
// uses this interface, so tests can make any call fail, transfer less than requested or complete late. Every call is thread-safe unless
// documented otherwise. Sockets are non-blocking and close-on-exec. If a system call fails, its errno is returned as a status whose message
// names the call.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::sys {

// The address on which a socket listens.
struct socket_address {
  enum class family : std::uint8_t { unix_path, unix_abstract, tcp };
  family kind = family::unix_abstract;
  std::string name;        // the path or the abstract name; for tcp, the host name or numeric address
  std::uint16_t port = 0;  // only for tcp; 0: the kernel chooses
};

// The peer process of a unix socket, as reported by the kernel.
struct credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// Closes its descriptor on destruction.
class owned_descriptor {
 public:
  owned_descriptor() noexcept = default;
  explicit owned_descriptor(int fd) noexcept : fd_(fd) {}
  owned_descriptor(owned_descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  owned_descriptor& operator=(owned_descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_descriptor();
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

// Memory that several processes have mapped. Unmapped on destruction. Its size is fixed.
class shared_region {
 public:
  shared_region() noexcept = default;
  shared_region(std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  shared_region(shared_region&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  shared_region& operator=(shared_region&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~shared_region();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};
struct offered_region {
  shared_region memory;
  owned_descriptor by;  // pass it to map_region() in another process
};

struct socket_event {
  std::uint64_t token = 0;
  bool readable = false;  // or the peer has closed the connection
  bool writable = false;
};

// Waits for many sockets. Only one thread at a time may call wait().
class poller {
 public:
  virtual ~poller() = default;
  // Starts reporting the socket, with this token, when it becomes readable and, if `writable` is set, when it becomes writable.
  virtual status add(int fd, std::uint64_t token, bool writable) = 0;
  virtual status change(int fd, std::uint64_t token, bool writable) = 0;
  virtual void remove(int fd) noexcept = 0;
  static constexpr std::chrono::microseconds for_ever = std::chrono::microseconds::max();
  // Blocks until an event is available, the timeout expires, or interrupt() is called. Returns the number of events.
  virtual result<std::size_t> wait(std::span<socket_event> out, std::chrono::microseconds most) = 0;
  virtual void interrupt() noexcept = 0;
};

class peer {
 public:
  virtual ~peer() = default;
  // Replaces a unix socket that a dead process left behind. If a host has several addresses, listens on the first one that this machine
  // has. Errors: not_found (no such host), io (in use, ...).
  virtual result<owned_descriptor> listen(const socket_address& at) = 0;
  // Returns the port that the kernel chose.
  virtual result<std::uint16_t> port_of(int listening) = 0;
  // Returns the local or peer address of a connected tcp socket, in numeric form.
  virtual result<socket_address> address_of(int fd, bool of_other) = 0;
  // Errors: would_block (no connection is waiting).
  virtual result<owned_descriptor> accept(int listening) = 0;
  // Returns all numeric addresses of a tcp host, in the order in which to try them. Other kinds of address are returned unchanged. The name
  // lookup may block. Errors: not_found (no such host).
  virtual result<std::vector<socket_address>> addresses_of(const socket_address& host) = 0;
  // Starts to connect. The socket becomes writable when the attempt has completed; connected() then returns the outcome. Uses the first
  // address of a name; the lookup may block.
  virtual result<owned_descriptor> connect(const socket_address& to) = 0;
  virtual status connected(int fd) = 0;
  // Blocks until the attempt has completed or the timeout expires.
  virtual void await_connected(int fd, std::chrono::milliseconds most) noexcept = 0;
  // Only for unix sockets.
  virtual result<credentials> credentials_of(int fd) = 0;
  // Returns the number of bytes sent. Errors: would_block (no room). passed: descriptors to pass to the peer of a unix socket, sent with
  // the first of these bytes.
  virtual result<std::size_t> send(int fd, std::span<const iovec> parts, std::span<const int> passed = {}) = 0;
  // Returns the number of bytes received; 0 at the end of the stream. Errors: would_block (nothing to read). passed: receives the
  // descriptors sent with the bytes; if null, they are closed.
  virtual result<std::size_t> receive(int fd, std::span<const iovec> parts, std::vector<owned_descriptor>* passed = nullptr) = 0;
  // Returns true if receive() would not fail with would_block.
  virtual bool has_something(int fd) noexcept = 0;
  // Shuts down sending; bytes already sent still arrive. receiving_too: also shuts down receiving.
  virtual void finish(int fd, bool receiving_too) noexcept = 0;
  virtual result<std::unique_ptr<poller>> make_poller() = 0;
  // Allocates zeroed memory that can be shared. Errors: out_of_memory, io (too many descriptors).
  virtual result<offered_region> make_region(std::size_t bytes) = 0;
  // Maps memory from another process's make_region(). Errors: invalid_argument (not such memory, or a different size).
  virtual result<shared_region> map_region(int by, std::size_t bytes) = 0;
  // Reads another process's memory (process_vm_readv). Errors: bad_memory (the range is not mapped), permission_denied (this process may
  // not read the other process's memory).
  virtual status read_memory(pid_t process, std::uint64_t address, std::byte* target, std::size_t bytes) = 0;
  // Returns a process descriptor for has_ended(). It stays valid even if the PID is reused. Errors: not_found, unsupported (an older
  // kernel, seccomp).
  virtual result<owned_descriptor> watch_process(pid_t process) = 0;
  // Returns true once the process has exited and its devices have completed all work for it.
  virtual bool has_ended(int watched_process) noexcept = 0;
};

std::shared_ptr<peer> linux_peer();

// Identifies the current boot of this machine. Empty if unknown.
std::string boot_id();

}  // namespace penstock::sys
