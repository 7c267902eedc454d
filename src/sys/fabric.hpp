// Network fabrics: send memory of this process to another process, and receive from it, in the best way that the network card offers; RDMA
// does it without copies. All other code uses this interface, so tests can make any call fail or complete late. Thread-safe.
//
// Bytes are sent to a tag that the receiver has chosen: nothing is written to memory that was not posted for that tag, and no process can
// read memory of another. Nothing is authenticated or encrypted here.
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
  bool of_cuda = false;  // device memory that CUDA knows
};

// One end of a connection between two processes. Each end is connected to exactly one other.
class fabric_line {
 public:
  // Called exactly once with the outcome, on the fabric's thread. Once it is called, the memory is no longer read or written. Exceptions:
  // while the process ends it runs on the calling thread; in a forked child it is not called.
  using told = std::function<void(const status&)>;

  virtual ~fabric_line() = default;  // calls end()
  // The address of this end, for connect() at the other end.
  [[nodiscard]] virtual const std::vector<std::byte>& address() const noexcept = 0;
  // Connects to the other end. Call it once, before either end sends. None of these calls blocks.
  virtual void connect(std::vector<std::byte> address) = 0;
  // Sends all bytes to a tag, which must not be 0. Completes with ok when the memory may be reused.
  virtual void send(std::uint64_t tag, const fabric_buffer& from, told done) = 0;
  // Receives the bytes sent to this tag; the lengths must match. Returns a number for cancel().
  virtual std::uint64_t receive(std::uint64_t tag, const fabric_buffer& to, told done) = 0;
  // Completes the receive with errc::cancelled if nothing has arrived for it yet.
  virtual void cancel(std::uint64_t receive) = 0;
  // Limits the transfers that are in flight now: the line ends if no transfer completes for this time, or if they take ten times as long in
  // total.
  virtual void limit(std::chrono::milliseconds time) = 0;
  // Ends the line and its transfers with the error `why`. If the line is not connected at both ends, this takes up to half a second.
  virtual void end(const status& why) = 0;
};

class fabric {
 public:
  virtual ~fabric() = default;  // its lines keep the fabric alive
  [[nodiscard]] virtual bool knows_cuda() const noexcept = 0;
  // ended: called once if the fabric ends the line, for example because the other end has died. Runs on the fabric's thread.
  virtual result<std::unique_ptr<fabric_line>> make_line(fabric_line::told ended) = 0;
};

struct fabric_options {
  std::string devices;                // "mlx5_0:1,mlx5_1:1"; empty: the fabric chooses
  bool only_rdma = false;             // neither connect nor accept over TCP
  std::function<void()> on_thread{};  // called first on the fabric's thread, which sleeps while nothing is in flight
  std::size_t rails = 0;              // the most devices that one transfer may use at once; 0: the fabric chooses
};

class fabrics {
 public:
  virtual ~fabrics() = default;
  // Returns ok if a fabric is available, otherwise unsupported with the reason. The first call takes milliseconds.
  virtual status usable() = 0;
  virtual result<std::shared_ptr<fabric>> open(const fabric_options& options) = 0;
};

// The fabrics of UCX. libucp.so.0 is loaded on first use.
std::shared_ptr<fabrics> ucx_fabrics();

}  // namespace penstock::sys
