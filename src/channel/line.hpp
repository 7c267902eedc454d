// A line of a pipe over a network fabric: the way for tensors from one kind of the sender's memory to one kind of the receiver's. Belongs
// to its carrier and is guarded by the pipe's lock, but for what does not change.
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
  static constexpr std::size_t most = 64;  // of a pipe, each way, those that are over included
  // What an operation that has ended has left under way has this long between one end and the next.
  static constexpr std::chrono::milliseconds most_draining{1000};

  std::uint32_t number = 0;                // does not change, like the next three
  std::string device;                      // of the sender; empty: its host's memory
  const sys::fabric* by = nullptr;         // at this end
  std::unique_ptr<sys::fabric_line> over;  // null: it could not be made
  bool ready = false;                      // it is connected, as far as this end knows
  status ended;                            // ok: it goes on
};

// A piece of a tensor on its way over a line. At the receiver it is there once it has come and the sender has said that it was sent while
// the message was what it is.
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
