// The door to other processes: stream sockets, waiting for them, memory shared with another process, and reading another process's memory.
// Everything above asks this interface, so tests can make any call fail, fall short or come late. Every call is thread-safe unless it says
// otherwise. Sockets do not block and are closed on exec. A failed call returns the errno of that very call as a status whose message names
// the call.
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

// Memory that several processes have mapped; unmapped with this. Its size does not change.
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
  owned_descriptor by;  // for map_region() in another process
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
  static constexpr std::chrono::microseconds for_ever = std::chrono::microseconds::max();
  // Blocks until there is something to tell, the time is over, or interrupt(). Returns how many.
  virtual result<std::size_t> wait(std::span<socket_event> out, std::chrono::microseconds most) = 0;
  virtual void interrupt() noexcept = 0;
};

class peer {
 public:
  virtual ~peer() = default;
  // A unix path that a dead process has left behind is taken over. Of a host with several addresses, listens at the first that this machine
  // has. Errors: not_found (no such host), io (in use, ...).
  virtual result<owned_descriptor> listen(const socket_address& at) = 0;
  // The port that the kernel chose.
  virtual result<std::uint16_t> port_of(int listening) = 0;
  // Of a tcp socket that is connected, in numbers: of this end of it, or of the other.
  virtual result<socket_address> address_of(int fd, bool of_other) = 0;
  // would_block: nobody is waiting.
  virtual result<owned_descriptor> accept(int listening) = 0;
  // All addresses of a tcp host, in numbers and in the order in which to try them; of others the address itself. Looks up the name, which
  // may block. Errors: not_found (no such host).
  virtual result<std::vector<socket_address>> addresses_of(const socket_address& host) = 0;
  // Begins to connect; can be written once that has ended, and connected() tells how. Looks up a name, which may block, and takes its first
  // address.
  virtual result<owned_descriptor> connect(const socket_address& to) = 0;
  virtual status connected(int fd) = 0;
  // Blocks until that has ended, or the time is over.
  virtual void await_connected(int fd, std::chrono::milliseconds most) noexcept = 0;
  // Of a unix socket.
  virtual result<credentials> credentials_of(int fd) = 0;
  // Bytes; would_block when there is no room. passed: of a unix socket, descriptors that the other end gets with the first of these bytes.
  virtual result<std::size_t> send(int fd, std::span<const iovec> parts, std::span<const int> passed = {}) = 0;
  // Bytes, 0 at the end; would_block when there is nothing. passed: gets the descriptors that have come with them; null: they are closed.
  virtual result<std::size_t> receive(int fd, std::span<const iovec> parts, std::vector<owned_descriptor>* passed = nullptr) = 0;
  // receive() would not say would_block.
  virtual bool has_something(int fd) noexcept = 0;
  // No more is sent, and what has been arrives. receiving_too: nor does anything come that has not come yet.
  virtual void finish(int fd, bool receiving_too) noexcept = 0;
  virtual result<std::unique_ptr<poller>> make_poller() = 0;
  // Zeros, to be shared. Errors: out_of_memory, io (too many descriptors).
  virtual result<offered_region> make_region(std::size_t bytes) = 0;
  // What another process has made. Errors: invalid_argument (it is none, or has another size).
  virtual result<shared_region> map_region(int by, std::size_t bytes) = 0;
  // Reads another process's memory (process_vm_readv). A range that is not there is bad_memory; a process that may not be read,
  // permission_denied.
  virtual status read_memory(pid_t process, std::uint64_t address, std::byte* target, std::size_t bytes) = 0;
  // For has_ended(), whatever process gets that number later. Errors: not_found, unsupported (an older kernel, seccomp).
  virtual result<owned_descriptor> watch_process(pid_t process) = 0;
  // With everything that its devices did.
  virtual bool has_ended(int watched_process) noexcept = 0;
};

std::shared_ptr<peer> linux_peer();

// Of this machine since it was started. Empty where that is not known.
std::string boot_id();

}  // namespace penstock::sys
