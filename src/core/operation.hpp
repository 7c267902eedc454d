// A request or a batch, which completes exactly once. Reference-counted: the user's handle and the running request each own one reference.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/deadlines.hpp"
#include "core/gate.hpp"
#include "core/runtime.hpp"
#include "penstock/engine.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"
#include "sys/nvtx.hpp"

namespace penstock::core {

class operation : public timed {
 public:
  // with: null for an operation that ends before it needs an engine.
  explicit operation(std::shared_ptr<core::runtime> with);
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  // Returns true once the outcome is known and the callback has run. During the callback, it already returns true on the callback's thread.
  [[nodiscard]] bool done() const noexcept;
  // Does not block: cancels queued work on the calling thread. Has no effect in a forked child.
  void cancel();
  // Blocks until done. spin: how long to wait without sleeping. In a forked child, both functions return at once. wait_until() never runs
  // work that could block, so it returns in time.
  void wait(std::chrono::microseconds spin);
  bool wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin);
  // Valid once done() returns true.
  [[nodiscard]] const io_result& outcome() const noexcept { return outcome_; }
  [[nodiscard]] std::vector<io_result> items() const { return items_; }
  // Valid at any time.
  [[nodiscard]] std::size_t item_count() const noexcept { return items_.size(); }

  // at_once: run the callback on the thread that completes the operation; otherwise on the engine's callback thread.
  void set_callback(io_callback callback, bool at_once = false) noexcept {
    callback_ = std::move(callback);
    calls_at_once_ = at_once;
  }
  [[nodiscard]] core::runtime* runtime_if_any() const noexcept { return runtime_.get(); }
  [[nodiscard]] core::runtime& runtime() const noexcept { return *runtime_; }
  // Shows the operation in profiling tools until it completes.
  void show_as(sys::nvtx_range range) noexcept { range_ = std::move(range); }
  // Arranges for end_queued() to be called when the deadline passes. Call it once, before the request can complete.
  status watch_deadline();
  // The reason to stop: cancelled or timed_out; ok if there is none.
  [[nodiscard]] status stop_reason() const noexcept;

  // How long a waiting thread spins before it sleeps.
  [[nodiscard]] virtual std::chrono::microseconds spin() const noexcept { return std::chrono::microseconds(0); }
  // Between begin_polling() and end_polling(), the waiting thread does work that would otherwise require waking another thread. poll()
  // returns true if there was work.
  virtual void begin_polling() noexcept {}
  virtual bool poll() noexcept { return false; }
  virtual void end_polling() noexcept {}
  // Announces that the operation will complete soon and that poll() will detect it. The waiting thread then keeps polling, however long it
  // takes, with very short sleeps, because waking a sleeping thread takes longer than many transfers. Any thread.
  void comes_soon() noexcept;

  // The lanes that could not start threads, so that the waiting thread must run their urgent work. Null if they have threads.
  virtual staging::lanes* lanes_without_threads() noexcept { return nullptr; }

  // Ends the queued work of a stopped request (cancelled, or past its deadline). Does not affect work that has started. Does not block. Any
  // thread.
  void end_queued() override {}

 protected:
  ~operation() override;
  // Called by cancel() once the request is marked as cancelled. Never called in a forked child, where another thread may have held the
  // locks at the time of the fork.
  virtual void end_cancelled() { end_queued(); }
  // Completes the operation. Call it only once. Releases the reference of the running request, so the object may be destroyed on return.
  void complete(io_result outcome) noexcept;
  // The parts of complete(), for requests that complete together. settle() sets the outcome and, if there is no callback, wakes waiting
  // threads. call_back() runs the callback on one of the engine's threads and then wakes waiting threads.
  void settle(io_result outcome) noexcept;
  [[nodiscard]] bool has_callback() const noexcept { return static_cast<bool>(callback_); }
  void call_back() noexcept;
  // Runs work that calls a callback on the engine's callback thread. On return the work may have run, and the engine may be destroyed.
  static void run_soon(core::runtime& with, staging::work_list& list, staging::work& item) noexcept;

  std::vector<io_result> items_;

 private:
  // settled: the outcome is known. done: the callback, if any, has also run.
  enum class life : std::uint8_t { running, settled, done };

  class callback_work final : public staging::work {
   public:
    explicit callback_work(operation& owner) noexcept : owner_(owner) {}
    bool run() override;  // releases the reference of the running request
    staging::work_list list;

   private:
    operation& owner_;
  };

  void move_to(life next) noexcept;

  in_flight in_flight_;
  std::shared_ptr<core::runtime> runtime_;
  std::atomic<life> life_{life::running};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> comes_soon_{false};
  bool deadline_watched_ = false;
  io_result outcome_;
  sys::nvtx_range range_;
  io_callback callback_;
  bool calls_at_once_ = false;
  callback_work callback_work_{*this};
  std::mutex lock_;  // guards completion: a thread that sees done and then acquires this lock knows that complete() no longer uses the
                     // object
  std::condition_variable ended_;
};

// Returns an operation that has already completed with this error (or with out_of_memory, if there is not enough memory for it) and has no
// per-request results. The caller owns the reference.
operation* refused(const status& why) noexcept;

}  // namespace penstock::core
