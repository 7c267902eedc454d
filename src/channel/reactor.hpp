// The thread that waits for sockets: tells each one's handler when there is something to read or room to write. It does nothing while
// nothing comes. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "penstock/status.hpp"
#include "sys/fork_guard.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// Called on the reactor's thread, one call at a time. Must not block.
class socket_handler {
 public:
  enum class next : std::uint8_t {
    event,  // it is called when there is one
    turn,   // it has more to do: when the others have had their turn
    later   // or in a moment, whatever comes
  };
  virtual ~socket_handler() = default;
  virtual next ready(bool readable, bool writable) noexcept = 0;
};

class reactor {
 public:
  // Starts the thread.
  static result<std::shared_ptr<reactor>> make(std::shared_ptr<sys::peer> door);
  reactor(const reactor&) = delete;
  reactor& operator=(const reactor&) = delete;
  ~reactor();  // no handler is called after this; may run on the reactor's own thread. In a forked child it only lets go

  // Keeps the handler until remove(). Returns its token.
  result<std::uint64_t> add(int fd, std::shared_ptr<socket_handler> handler, bool writable);
  status change(int fd, std::uint64_t token, bool writable);
  // The handler is called in about 100 us, whatever comes.
  void later(std::uint64_t token) noexcept;
  // The handler is let go of; a call of it may be running on the reactor's thread.
  void remove(int fd, std::uint64_t token) noexcept;

 private:
  // Shared with the thread, which may be what lets go of the reactor.
  struct shared {
    std::shared_ptr<sys::peer> door;
    std::unique_ptr<sys::poller> poller;
    std::mutex lock;  // guards what follows
    std::unordered_map<std::uint64_t, std::shared_ptr<socket_handler>> handlers;
    std::uint64_t next_token = 1;
    std::vector<std::uint64_t> later;
    bool has_time_limit = true;  // the thread looks at what is to be called later
    std::atomic<bool> stopping{false};
  };

  explicit reactor(std::shared_ptr<shared> with) noexcept : shared_(std::move(with)) {}
  static void loop(const std::shared_ptr<shared>& with);

  const sys::fork_guard fork_;
  const std::shared_ptr<shared> shared_;
  std::thread thread_;
};

}  // namespace penstock::channel
