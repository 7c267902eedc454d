// Creates pipes by connecting and by listening. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "channel/reactor.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

class listener;

class server {
 public:
  // further_channels: take precedence over the registry's.
  static result<std::shared_ptr<server>> make(std::shared_ptr<core::engine_core> with, std::shared_ptr<sys::peer> door,
                                              const pipe_options& options, std::shared_ptr<sys::fabrics> network = sys::ucx_fabrics(),
                                              const std::string& sysfs = "/sys",
                                              std::span<const channel::channel* const> further_channels = {});
  explicit server(pipe_shared with) : with_(std::move(with)) {}
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  [[nodiscard]] result<std::shared_ptr<listener>> listen(const std::string& url) const;
  [[nodiscard]] result<std::shared_ptr<session>> connect(const std::string& url) const;

 private:
  const pipe_shared with_;
};

class accept_operation;

// Accepts connections and hands out those that have completed the handshake. A new connection is a stranger until it has sent its greeting;
// before that it must negotiate TLS and prove that it knows the secret, if these are required. So a health check or a port scanner, which
// connects and disconnects, never completes an accept(). A peer that uses a different protocol version, or a secret or TLS where the
// listener has none, is accepted, and its pipe's first operation returns the error. Limits on strangers:
// - A stranger has pipe_options::prove_within to finish, no matter what it sends. A protocol error closes it at once.
// - The number of strangers is limited, and the limit drops when the process has used most of its descriptors. To make room for a new one,
//   the listener closes the oldest stranger: first among those that have sent nothing, then among the others. It does not close strangers
//   with unread bytes, or within their first 20 ms, which is enough for a nearby peer to prove that it knows the secret. If none may be
//   closed, new connections stay in the kernel's backlog.
// - Closing a stranger frees its descriptor and its memory.
// - If the process lacks a descriptor or kernel memory for a new connection, strangers are closed in the same way. If there are none, the
//   listener retries after 50 ms while accept() keeps waiting.
class listener final : public channel::socket_handler, public core::resident, public std::enable_shared_from_this<listener> {
 public:
  listener(const pipe_shared& with, sys::owned_descriptor over, std::string url, bool local)
      : with_(with), url_(std::move(url)), local_(local), socket_(std::move(over)) {}
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  // See pipe_listener::refused().
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(); }
  // The caller owns one reference to the result.
  core::operation* accept(pipe& into, const pipe_operation_options& options, io_callback callback);
  void stop(accept_operation& op) noexcept;
  void close() noexcept;
  next ready(bool readable, bool writable) noexcept override;
  void due() noexcept override;
  [[nodiscard]] std::string obstacle() const override;
  status rest(deadline_clock::time_point /*until*/) override { return {}; }

 private:
  using clock = channel::reactor::clock;
  struct stranger {
    std::shared_ptr<session> who;
    clock::time_point came;
  };
  // Work to do after the lock is released.
  struct step {
    accept_operation* op = nullptr;  // an accept() that now has its connection, or an error
    std::optional<pipe> come{};
    status problem{};
    std::shared_ptr<session> away{};  // to be closed
    bool again = false;               // another step may be due
  };

  [[nodiscard]] std::size_t most_strangers() const noexcept;
  // Accepts pending connections while an accept() waits. The reactor reports readiness only then; other connections stay in the backlog.
  void accept_what_has_come() noexcept;
  // --- called with the lock held
  step next_step() noexcept;
  result<pipe> accept_one(std::shared_ptr<session>& away);
  status admit(sys::owned_descriptor over);
  status make_room(std::shared_ptr<session>& away);
  [[nodiscard]] std::shared_ptr<session> take_whom_to_turn_away(clock::time_point now);
  status hear(bool on);
  void set_clock() noexcept;
  // --- called without the lock
  void proven(const std::shared_ptr<session>& of, bool knows) noexcept;

  const pipe_shared with_;
  const std::string url_;
  const bool local_;
  std::atomic<std::uint64_t> refused_{0};
  mutable std::mutex lock_;  // guards the members below
  sys::owned_descriptor socket_;
  std::uint64_t token_ = 0;  // the reactor's token, set by the first accept()
  bool hears_ = false;       // the reactor reports new connections
  bool closed_ = false;
  int latest_descriptor_ = 0;                                 // the latest connection's: the kernel assigns the lowest free number
  clock::time_point tries_again_ = clock::time_point::max();  // the next attempt, if there was no room
  clock::time_point clock_at_ = clock::time_point::max();     // when the reactor calls due()
  std::deque<accept_operation*> waiting_;
  std::deque<stranger> strangers_;               // have not sent a greeting yet; newest last
  std::deque<std::shared_ptr<session>> proven_;  // have completed the handshake but are not accepted yet
};

// Owned by the listener; guarded by its lock.
class accept_operation final : public core::operation {
 public:
  accept_operation(std::shared_ptr<listener> by, pipe& target, std::shared_ptr<core::runtime> with)
      : core::operation(std::move(with)), into(&target), by_(std::move(by)) {}
  void end_queued() override { by_->stop(*this); }
  void tell_end(const status& why) noexcept { complete({0, why}); }

  pipe* const into;
  bool known = false;

 private:
  ~accept_operation() override = default;
  const std::shared_ptr<listener> by_;
};

}  // namespace penstock::pipes
