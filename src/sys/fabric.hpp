// The door to network fabrics: memory of this process sent to, and received from, another process by what the network card can do best,
// which for RDMA is without any copy. Everything above asks this interface, so tests can make any call fail or come late. Thread-safe.
//
// Bytes are sent to a tag that the receiver has drawn: nothing is written to memory that was not named for that very tag, and no process
// can ask for memory of another. Nothing here is authenticated or encrypted.
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
  bool of_cuda = false;  // it is memory of a device that CUDA knows
};

// Two processes have one line each, which are connected to each other and to no third.
class fabric_line {
 public:
  // How something ended: once, on the fabric's thread, and always. Once it is called nothing of the memory is read or written any more.
  using told = std::function<void(const status&)>;

  virtual ~fabric_line() = default;  // end()
  // For connect() at the other end.
  [[nodiscard]] virtual const std::vector<std::byte>& address() const noexcept = 0;
  // Once, before anything is sent to either end of it. None of these calls blocks.
  virtual void connect(std::vector<std::byte> address) = 0;
  // Ends well when it is on its way as a whole. The tag is not 0.
  virtual void send(std::uint64_t tag, const fabric_buffer& from, told done) = 0;
  // What is sent to this tag, which has to be as long. A number for cancel().
  virtual std::uint64_t receive(std::uint64_t tag, const fabric_buffer& to, told done) = 0;
  // It ends with errc::cancelled, where nothing has come for it yet.
  virtual void cancel(std::uint64_t receive) = 0;
  // What is under way now has to end, with no longer than this without the end of anything, and ten times this altogether: else the line
  // does.
  virtual void limit(std::chrono::milliseconds time) = 0;
  // The line ends, and with it what is under way, with why: at once, or in half a second where it has not been connected at both ends.
  virtual void end(const status& why) = 0;
};

class fabric {
 public:
  virtual ~fabric() = default;  // outlived by its lines: the last of them lets go of it
  [[nodiscard]] virtual bool knows_cuda() const noexcept = 0;
  // ended: told once of the line's end where that comes from the fabric: the other end has died, say. Like the others on the fabric's
  // thread.
  virtual result<std::unique_ptr<fabric_line>> make_line(fabric_line::told ended) = 0;
};

struct fabric_options {
  std::string devices;                // "mlx5_0:1,mlx5_1:1"; empty: whichever the fabric likes
  bool only_rdma = false;             // nothing is to go, nor anybody let in, over tcp
  std::function<void()> on_thread{};  // called first on the fabric's thread, which sleeps while nothing is under way
  std::size_t rails = 0;              // devices that one transfer may go over at once; 0: as many as the fabric likes
};

class fabrics {
 public:
  virtual ~fabrics() = default;
  // Whether there is any, and else why not: unsupported. Takes milliseconds, once.
  virtual status usable() = 0;
  virtual result<std::shared_ptr<fabric>> open(const fabric_options& options) = 0;
};

// The engine UCX, from libucp.so.0, which is opened when it is first asked for.
std::shared_ptr<fabrics> ucx_fabrics();

}  // namespace penstock::sys
