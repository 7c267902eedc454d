// A thread that waits for sockets and calls a socket's handler when there is something to read or room to write. It sleeps while nothing
// arrives. Thread-safe.
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

#include "core/resident.hpp"
#include "penstock/status.hpp"
#include "sys/fork_guard.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// Called on the reactor's thread, one call at a time. Must not block.
class socket_handler {
 public:
  enum class next : std::uint8_t {
    event,  // call again on the next event
    turn,   // there is more to do: call again after the other handlers
    later   // call again in about 100 us, even if nothing arrives
  };
  virtual ~socket_handler() = default;
  virtual next ready(bool readable, bool writable) noexcept = 0;
  // Called at the time set with call_at().
  virtual void due() noexcept {}
};

class reactor final : public core::resident {
 public:
  using clock = std::chrono::steady_clock;

  // Starts the thread.
  static result<std::shared_ptr<reactor>> make(std::shared_ptr<sys::peer> door);
  reactor(const reactor&) = delete;
  reactor& operator=(const reactor&) = delete;
  ~reactor() override;  // after this no handler is called; may run on the reactor's thread. In a forked child it only releases memory

  // Registers the handler until remove(). Returns its token.
  result<std::uint64_t> add(int fd, std::shared_ptr<socket_handler> handler, bool writable);
  status change(int fd, std::uint64_t token, bool writable);
  // Calls the handler in about 100 us, even if nothing arrives.
  void later(std::uint64_t token) noexcept;
  // Removes the handler; a call to it may still be running on the reactor's thread.
  void remove(int fd, std::uint64_t token) noexcept;
  // Stops events of the socket until resume(); the handler stays registered.
  void pause(int fd) noexcept { shared_->poller->remove(fd); }
  status resume(int fd, std::uint64_t token) { return shared_->poller->add(fd, token, false); }
  // Calls due() once at this time, unless it is cancelled or replaced by another time first. Returns false if memory runs out.
  bool call_at(std::uint64_t token, clock::time_point when) noexcept;
  void call_off(std::uint64_t token) noexcept;
  // Waits until no handler is left, then ends the thread. add() starts it again. Error: timed_out.
  status rest(deadline_clock::time_point until) override;

 private:
  static constexpr auto never = clock::time_point::max();
  // Shared with the thread, because the thread may release the last reference to the reactor.
  struct shared {
    std::shared_ptr<sys::peer> door;
    std::unique_ptr<sys::poller> poller;
    std::mutex lock;  // guards the members below
    struct entry {
      std::shared_ptr<socket_handler> handler;
      clock::time_point due = never;
    };
    void call_off(std::uint64_t token, entry& of) noexcept;
    std::unordered_map<std::uint64_t, entry> handlers;
    std::set<std::pair<clock::time_point, std::uint64_t>> times;  // the scheduled times of all handlers
    std::uint64_t next_token = 1;
    std::vector<std::uint64_t> later;
    bool has_time_limit = true;  // the thread wakes periodically for handlers that asked for `later`
    std::atomic<bool> stopping{false};
  };

  explicit reactor(std::shared_ptr<shared> with) noexcept : shared_(std::move(with)) {}
  status start();
  static void loop(const std::shared_ptr<shared>& with);
  static void call_those_due(shared& with) noexcept;

  const sys::fork_guard fork_;
  const std::shared_ptr<shared> shared_;
  std::mutex starting_;  // guards thread_
  std::thread thread_;
};

}  // namespace penstock::channel
