// A pipe's line over a network fabric: the route for tensors from one kind of the sender's memory to one kind of the receiver's. Owned by
// its carrier and guarded by the pipe's lock, except for its constants.
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
  static constexpr std::size_t most = 64;  // per pipe and direction, including closed lines
  // After an operation has failed, its remaining requests must complete within this time of each other.
  static constexpr std::chrono::milliseconds most_draining{1000};

  std::uint32_t number = 0;                // constant, like the next three
  std::string device;                      // the sender's; empty: host memory
  const sys::fabric* by = nullptr;         // the local fabric
  std::unique_ptr<sys::fabric_line> over;  // null: it could not be created
  bool ready = false;                      // connected, as far as this end knows
  status ended;                            // ok: the line is in use
};

// A piece of a tensor in flight over a line. It is complete once the bytes have arrived and the sender has confirmed that the message was
// unchanged when they were sent.
template <class Operation>
struct line_piece {
  Operation* of = nullptr;
  std::shared_ptr<pipe_line> on;
  std::uint64_t tag = 0;
  std::uint64_t number = 0;  // the line's number for the receive
  bool come = false;
  bool answered = false;
};

}  // namespace penstock::channel
