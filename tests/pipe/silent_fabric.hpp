// A fabric that takes every address, sends everything into nothing, and brings nothing: for an end that says what it likes.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <utility>

#include "sys/fabric.hpp"

namespace penstock::testing {

class silent_fabric final : public sys::fabrics, public sys::fabric, public std::enable_shared_from_this<silent_fabric> {
 public:
  silent_fabric() : thread_([this] { run(); }) {}
  silent_fabric(const silent_fabric&) = delete;
  silent_fabric& operator=(const silent_fabric&) = delete;
  ~silent_fabric() override {
    later({});
    if (thread_.get_id() == std::this_thread::get_id()) std::abort();  // a test keeps it
    thread_.join();
  }
  status usable() override { return {}; }
  result<std::shared_ptr<sys::fabric>> open(const sys::fabric_options& /*options*/) override {
    return std::shared_ptr<sys::fabric>(shared_from_this());
  }
  [[nodiscard]] bool knows_cuda() const noexcept override { return true; }
  result<std::unique_ptr<sys::fabric_line>> make_line(sys::fabric_line::told /*ended*/) override {
    return std::unique_ptr<sys::fabric_line>(std::make_unique<line>(*this));
  }

 private:
  class line final : public sys::fabric_line {
   public:
    explicit line(silent_fabric& of) : of_(of) {}
    ~line() override { end({errc::closed, "the line was closed"}); }
    [[nodiscard]] const std::vector<std::byte>& address() const noexcept override { return address_; }
    void connect(std::vector<std::byte> /*address*/) override {}
    void send(std::uint64_t /*tag*/, const sys::fabric_buffer& /*from*/, told done) override {
      of_.later([done = std::move(done)] { done({}); });
    }
    std::uint64_t receive(std::uint64_t /*tag*/, const sys::fabric_buffer& /*to*/, told done) override {
      const std::lock_guard guard(lock_);
      if (over_) {
        of_.later([done = std::move(done)] { done({errc::closed, "the line is over"}); });
      } else {
        waiting_.emplace(++last_, std::move(done));
      }
      return last_;
    }
    void cancel(std::uint64_t receive) override {
      const std::lock_guard guard(lock_);
      const auto found = waiting_.find(receive);
      if (found == waiting_.end()) return;
      of_.later([done = std::move(found->second)] { done({errc::cancelled, "cancelled"}); });
      waiting_.erase(found);
    }
    void limit(std::chrono::milliseconds /*time*/) override { end({errc::closed, "not in time"}); }
    void end(const status& why) override {
      const std::lock_guard guard(lock_);
      over_ = true;
      for (auto& [number, done] : std::exchange(waiting_, {})) of_.later([done = std::move(done), why] { done(why); });
    }

   private:
    silent_fabric& of_;
    const std::vector<std::byte> address_ = std::vector<std::byte>(100);
    std::mutex lock_;  // guards what follows
    bool over_ = false;
    std::uint64_t last_ = 0;
    std::map<std::uint64_t, told> waiting_;
  };

  void later(std::function<void()> what) {
    const std::lock_guard guard(lock_);
    queue_.push(std::move(what));
    more_.notify_one();
  }
  void run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock guard(lock_);
        more_.wait(guard, [this] { return !queue_.empty(); });
        next = std::move(queue_.front());
        queue_.pop();
      }
      if (!next) return;
      next();
    }
  }

  std::mutex lock_;  // guards queue_
  std::condition_variable more_;
  std::queue<std::function<void()>> queue_;  // an empty one ends it
  std::thread thread_;
};

}  // namespace penstock::testing
