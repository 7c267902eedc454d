// What makes pipes: by connecting, and by listening. Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "channel/reactor.hpp"
#include "core/pipe_core.hpp"

namespace penstock::core {

class pipe_listener_core;

class pipe_server {
 public:
  static result<std::shared_ptr<pipe_server>> make(std::shared_ptr<core::runtime> with, std::shared_ptr<sys::peer> door,
                                                   const pipe_options& options, std::shared_ptr<sys::fabrics> network = sys::ucx_fabrics(),
                                                   const std::string& sysfs = "/sys");
  explicit pipe_server(pipe_shared with) : with_(std::move(with)) {}
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  [[nodiscard]] result<std::shared_ptr<pipe_listener_core>> listen(const std::string& url) const;
  [[nodiscard]] result<std::shared_ptr<pipe_core>> connect(const std::string& url) const;

 private:
  const pipe_shared with_;
};

class accept_operation;

class pipe_listener_core final : public channel::socket_handler, public std::enable_shared_from_this<pipe_listener_core> {
 public:
  pipe_listener_core(const pipe_shared& with, sys::owned_descriptor over, std::string url, bool local)
      : with_(with), url_(std::move(url)), local_(local), socket_(std::move(over)) {}
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  // The caller's reference.
  operation* accept(pipe& into, const pipe_operation_options& options, io_callback callback);
  void stop(accept_operation& op) noexcept;
  void close() noexcept;
  next ready(bool readable, bool writable) noexcept override;

 private:
  // Whoever has come, while somebody waits. The reactor tells of more only then: who is not accepted stays with the kernel.
  void accept_what_has_come() noexcept;
  // Somebody who waits, and who has come, or why nobody can.
  struct meeting {
    accept_operation* op;
    std::optional<pipe> come;
    status problem;
  };
  std::optional<meeting> meet() noexcept;  // nothing: there is nobody for each other
  result<pipe> accept_one();
  void proven(const std::shared_ptr<pipe_core>& of, bool knows) noexcept;

  const pipe_shared with_;
  const std::string url_;
  const bool local_;
  const sys::owned_descriptor socket_;
  std::mutex lock_;  // guards what follows
  std::uint64_t token_ = 0;
  bool closed_ = false;
  std::deque<accept_operation*> waiting_;
  static constexpr std::size_t most_strangers = 64;
  std::deque<std::shared_ptr<pipe_core>> strangers_;  // who have not proved yet that they know the secret, the latest last
  std::deque<std::shared_ptr<pipe_core>> proven_;     // who have, and were not accepted yet
  std::deque<std::shared_ptr<pipe_core>> turned_away_;
};

// Belongs to the listener and is guarded by its lock.
class accept_operation final : public operation {
 public:
  accept_operation(std::shared_ptr<pipe_listener_core> by, pipe& target, std::shared_ptr<core::runtime> with)
      : operation(std::move(with)), into(&target), by_(std::move(by)) {}
  void end_queued() override { by_->stop(*this); }
  void tell_end(const status& why) noexcept { complete({0, why}); }

  pipe* const into;
  bool known = false;

 private:
  ~accept_operation() override = default;
  const std::shared_ptr<pipe_listener_core> by_;
};

}  // namespace penstock::core
