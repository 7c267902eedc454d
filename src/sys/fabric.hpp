// Network fabrics transfer memory between this process and another in the fastest way that the network card supports; with RDMA, without
// copies. All other code uses this interface, so tests can make any call fail or complete late. Thread-safe.
//
// Bytes are sent to a tag that the receiver has chosen: they are written only to memory that was posted for that tag, and no process can
// read another's memory. Nothing is authenticated or encrypted here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::sys {

struct fabric_buffer {
  void* memory = nullptr;
  std::uint64_t bytes = 0;
  bool of_cuda = false;  // device memory known to CUDA
};

// One end of a connection between two processes. Each end is connected to exactly one peer.
class fabric_line {
 public:
  // Called exactly once, on the fabric's thread, with the outcome. By then the memory is no longer read or written. Exceptions: while the
  // process exits, it is called on the calling thread; in a forked child it is never called.
  using told = std::function<void(const status&)>;

  virtual ~fabric_line() = default;  // calls end()
  // Returns the local address, which the peer passes to connect().
  [[nodiscard]] virtual const std::vector<std::byte>& address() const noexcept = 0;
  // Connects to the peer. Call it once, before either end sends. None of these calls blocks.
  virtual void connect(std::vector<std::byte> address) = 0;
  // Sends all bytes to a nonzero tag. Completes with ok when the memory may be reused.
  virtual void send(std::uint64_t tag, const fabric_buffer& from, told done) = 0;
  // Receives the bytes sent to this tag; the lengths must match. Returns an identifier for cancel().
  virtual std::uint64_t receive(std::uint64_t tag, const fabric_buffer& to, told done) = 0;
  // Completes the receive with errc::cancelled unless data has already arrived for it.
  virtual void cancel(std::uint64_t receive) = 0;
  // Sets a timeout for the transfers that are now in flight: the line ends if no transfer completes for this long, or if all of them
  // together take ten times this long.
  virtual void limit(std::chrono::milliseconds time) = 0;
  // Ends the line and fails its transfers with the error `why`. This takes up to half a second unless both ends are connected.
  virtual void end(const status& why) = 0;
};

class fabric {
 public:
  virtual ~fabric() = default;  // lines keep their fabric alive
  [[nodiscard]] virtual bool knows_cuda() const noexcept = 0;
  // ended: called once, on the fabric's thread, if the fabric ends the line, for example because the peer has died.
  virtual result<std::unique_ptr<fabric_line>> make_line(fabric_line::told ended) = 0;
};

struct fabric_options {
  std::string devices;                // "mlx5_0:1,mlx5_1:1"; empty: the fabric chooses
  bool only_rdma = false;             // neither connect nor accept over TCP
  std::function<void()> on_thread{};  // called when the fabric's thread starts; the thread sleeps while nothing is in flight
  std::size_t rails = 0;              // the most devices that one transfer may use at once; 0: the fabric chooses
};

class fabrics {
 public:
  virtual ~fabrics() = default;
  // Returns ok if a fabric is available; otherwise unsupported, with the reason. The first call takes milliseconds.
  virtual status usable() = 0;
  virtual result<std::shared_ptr<fabric>> open(const fabric_options& options) = 0;
};

// Fabrics that use UCX. libucp.so.0 is loaded on first use.
std::shared_ptr<fabrics> ucx_fabrics();

}  // namespace penstock::sys
