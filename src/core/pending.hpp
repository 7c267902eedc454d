// Something that will end once: a request or a batch. Counted by reference: the user's handle and the running request each hold one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/engine.hpp"
#include "staging/work.hpp"

namespace penstock::core {

class engine_core;

class pending {
 public:
  explicit pending(std::shared_ptr<engine_core> engine);
  pending(const pending&) = delete;
  pending& operator=(const pending&) = delete;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  // Blocks until done, helping with copies meanwhile. spin: how long to do so without sleeping. In a forked child nothing ends that had
  // not before, and both return at once.
  void wait(std::chrono::microseconds spin);
  bool wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin);
  // Valid once done.
  [[nodiscard]] const io_result& outcome() const noexcept { return outcome_; }
  [[nodiscard]] std::vector<io_result> items() const { return items_; }
  // Any time.
  [[nodiscard]] std::size_t item_count() const noexcept { return items_.size(); }

  void set_deadline(deadline_clock::time_point when) noexcept { deadline_ = when; }
  void set_callback(io_callback callback) { callback_ = std::move(callback); }
  [[nodiscard]] engine_core& engine() const noexcept { return *engine_; }

 protected:
  virtual ~pending();
  // Ends it, exactly once. The running request's reference is released: the object may be gone on return.
  void complete(io_result outcome);
  // The parts of complete(), for requests that end together: who waits may go on; and the callback, on a thread of the engine.
  void settle(io_result outcome);
  [[nodiscard]] bool has_callback() const noexcept { return static_cast<bool>(callback_); }
  void call_back();
  // Runs a work that calls back on a thread of the engine. It may have run, and the engine be gone, on return.
  static void run_soon(engine_core& engine, staging::work_list& list, staging::work& item);
  // Cancelled or past the deadline: which.
  [[nodiscard]] status stop_reason() const;

  std::vector<io_result> items_;

 private:
  class callback_work final : public staging::work {
   public:
    explicit callback_work(pending& owner) : owner_(owner) {}
    bool run() override;  // with it goes the running request's reference
    staging::work_list list;

   private:
    pending& owner_;
  };

  std::shared_ptr<engine_core> engine_;
  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> done_{false};
  std::atomic<bool> cancelled_{false};
  deadline_clock::time_point deadline_ = deadline_clock::time_point::max();
  io_result outcome_;
  io_callback callback_;
  std::unique_ptr<callback_work> callback_work_;
  std::mutex lock_;  // guards the end: who sees done_ and takes it once knows that complete() has let go
  std::condition_variable ended_;
};

}  // namespace penstock::core
