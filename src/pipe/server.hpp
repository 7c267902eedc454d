// What makes pipes: by connecting, and by listening. Thread-safe.
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
  // further_channels: beside those of the registry, and before them.
  static result<std::shared_ptr<server>> make(std::shared_ptr<core::runtime> with, std::shared_ptr<sys::peer> door,
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

// Whoever connects is a stranger until it has greeted, after it has proved that it knows the secret and has agreed on TLS where these are
// asked for. So a health check or a port scanner, which connects and closes, takes no accept() from a pipe. A pipe of another version, or
// with a secret or TLS that this end lacks, is accepted, so that its first operation says so:
// - It has pipe_options::prove_within for that, whatever it says meanwhile. One who says what it must not goes at once.
// - There are only so many, and fewer where the process has used up most of its descriptors. For one more the oldest goes of those who have
//   been here for a moment: of those who have said nothing, else of those who have. Nobody goes within that moment, in which one who is
//   near has proved it, nor while something that it has said is still to be read; as long as nobody may go, those who come stay with the
//   kernel (in its backlog).
// - Who goes leaves nothing behind: neither a descriptor nor memory.
// - Where the process lacks a descriptor, or the kernel memory, for one who comes, strangers make room in the same way, and where there are
//   none the listener tries again in a moment. accept() waits on.
class listener final : public channel::socket_handler, public std::enable_shared_from_this<listener> {
 public:
  listener(const pipe_shared& with, sys::owned_descriptor over, std::string url, bool local)
      : with_(with), url_(std::move(url)), local_(local), socket_(std::move(over)) {}
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  // As of pipe_listener.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_.load(); }
  // The caller's reference.
  core::operation* accept(pipe& into, const pipe_operation_options& options, io_callback callback);
  void stop(accept_operation& op) noexcept;
  void close() noexcept;
  next ready(bool readable, bool writable) noexcept override;
  void due() noexcept override;

 private:
  using clock = channel::reactor::clock;
  struct stranger {
    std::shared_ptr<session> who;
    clock::time_point came;
  };
  // What is to be done without the lock.
  struct step {
    accept_operation* op = nullptr;  // has waited for one who has come, or why nobody can
    std::optional<pipe> come{};
    status problem{};
    std::shared_ptr<session> away{};  // to be turned away
    bool again = false;               // there may be more to do then
  };

  [[nodiscard]] std::size_t most_strangers() const noexcept;
  // Whoever has come, while somebody waits. The reactor tells of more only then: who is not accepted stays with the kernel.
  void accept_what_has_come() noexcept;
  // --- with the lock
  step next_step() noexcept;
  result<pipe> accept_one(std::shared_ptr<session>& away);
  status admit(sys::owned_descriptor over);
  status make_room(std::shared_ptr<session>& away);
  [[nodiscard]] std::shared_ptr<session> take_whom_to_turn_away(clock::time_point now);
  status hear(bool on);
  void set_clock() noexcept;
  // --- without it
  void proven(const std::shared_ptr<session>& of, bool knows) noexcept;

  const pipe_shared with_;
  const std::string url_;
  const bool local_;
  std::atomic<std::uint64_t> refused_{0};
  std::mutex lock_;  // guards what follows
  sys::owned_descriptor socket_;
  std::uint64_t token_ = 0;  // the reactor's, from the first accept() on
  bool hears_ = false;       // it tells of who comes
  bool closed_ = false;
  int latest_descriptor_ = 0;                                 // of who came last: the kernel gives the lowest that is free
  clock::time_point tries_again_ = clock::time_point::max();  // where there was no room
  clock::time_point clock_at_ = clock::time_point::max();     // when the reactor calls
  std::deque<accept_operation*> waiting_;
  std::deque<stranger> strangers_;               // who have not greeted yet, the latest last
  std::deque<std::shared_ptr<session>> proven_;  // who have, and were not accepted yet
};

// Belongs to the listener and is guarded by its lock.
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
