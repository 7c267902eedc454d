// A line of a pipe over a network fabric: the route for tensors from one kind of the sender's memory to one kind of the receiver's. Owned
// by its carrier and guarded by the pipe's lock, except for its constants.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "penstock/status.hpp"
#include "sys/fabric.hpp"

namespace penstock::channel {

struct pipe_line {
  static constexpr std::size_t most = 64;  // per pipe and direction, including lines that are over
  // Requests that an ended operation has left in flight must end within this time of each other.
  static constexpr std::chrono::milliseconds most_draining{1000};

  std::uint32_t number = 0;                // constant, like the next three
  std::string device;                      // of the sender; empty: host memory
  const sys::fabric* by = nullptr;         // at this end
  std::unique_ptr<sys::fabric_line> over;  // null: it could not be created
  bool ready = false;                      // connected, as far as this end knows
  status ended;                            // ok: still in use
};

// A piece of a tensor in flight over a line. The receiver has it once the bytes have arrived and the sender has confirmed that it sent them
// while the message was unchanged.
template <class Operation>
struct line_piece {
  Operation* of = nullptr;
  std::shared_ptr<pipe_line> on;
  std::uint64_t tag = 0;
  std::uint64_t number = 0;  // of the receive, for the line
  bool come = false;
  bool answered = false;
};

}  // namespace penstock::channel
