// The thread that waits for sockets: tells each one's handler when there is something to read or room to write. It does nothing while
// nothing comes. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
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
  // The time has come that it was to be called at.
  virtual void due() noexcept {}
};

class reactor {
 public:
  using clock = std::chrono::steady_clock;

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
  // Nothing is told of the socket until resume(); the handler stays.
  void pause(int fd) noexcept { shared_->poller->remove(fd); }
  status resume(int fd, std::uint64_t token) { return shared_->poller->add(fd, token, false); }
  // due() is called then, once, unless it is called off or another time is set before. False: there is no memory for it.
  bool call_at(std::uint64_t token, clock::time_point when) noexcept;
  void call_off(std::uint64_t token) noexcept;

 private:
  static constexpr auto never = clock::time_point::max();
  // Shared with the thread, which may be what lets go of the reactor.
  struct shared {
    std::shared_ptr<sys::peer> door;
    std::unique_ptr<sys::poller> poller;
    std::mutex lock;  // guards what follows
    struct entry {
      std::shared_ptr<socket_handler> handler;
      clock::time_point due = never;
    };
    void call_off(std::uint64_t token, entry& of) noexcept;
    std::unordered_map<std::uint64_t, entry> handlers;
    std::set<std::pair<clock::time_point, std::uint64_t>> times;  // of those that are to be called at one
    std::uint64_t next_token = 1;
    std::vector<std::uint64_t> later;
    bool has_time_limit = true;  // the thread looks at what is to be called later
    std::atomic<bool> stopping{false};
  };

  explicit reactor(std::shared_ptr<shared> with) noexcept : shared_(std::move(with)) {}
  static void loop(const std::shared_ptr<shared>& with);
  static void call_those_due(shared& with) noexcept;

  const sys::fork_guard fork_;
  const std::shared_ptr<shared> shared_;
  std::thread thread_;
};

}  // namespace penstock::channel
