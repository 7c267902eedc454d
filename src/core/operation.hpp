// Something that will end once: a request or a batch. Counted by reference: the user's handle and the running request each hold one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/deadlines.hpp"
#include "core/runtime.hpp"
#include "penstock/engine.hpp"
#include "staging/lanes.hpp"
#include "staging/work.hpp"
#include "sys/nvtx.hpp"

namespace penstock::core {

class operation : public timed {
 public:
  // with: null for what ends before there is an engine to run it.
  explicit operation(std::shared_ptr<core::runtime> with);
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  // Its outcome is known, and its callback has run; on the thread of the callback, true already while it runs.
  [[nodiscard]] bool done() const noexcept;
  // Does not block: what is queued ends on this thread. In a forked child nothing ends.
  void cancel();
  // Blocks until done. spin: how long to do so without sleeping. In a forked child nothing ends that had not before, and both return at
  // once. The second carries out nothing that could block, so that it takes no longer than asked.
  void wait(std::chrono::microseconds spin);
  bool wait_until(std::chrono::steady_clock::time_point when, std::chrono::microseconds spin);
  // Valid once done.
  [[nodiscard]] const io_result& outcome() const noexcept { return outcome_; }
  [[nodiscard]] std::vector<io_result> items() const { return items_; }
  // Any time.
  [[nodiscard]] std::size_t item_count() const noexcept { return items_.size(); }

  // at_once: it is called on the thread that ends this; else on the engine's thread for that.
  void set_callback(io_callback callback, bool at_once = false) noexcept {
    callback_ = std::move(callback);
    calls_at_once_ = at_once;
  }
  [[nodiscard]] core::runtime* runtime_if_any() const noexcept { return runtime_.get(); }
  [[nodiscard]] core::runtime& runtime() const noexcept { return *runtime_; }
  // Shown to tools until this ends.
  void show_as(sys::nvtx_range range) noexcept { range_ = std::move(range); }
  // From now on end_queued() is called when the deadline passes. Called once, before the request can have ended.
  status watch_deadline();
  // Cancelled or past the deadline: which.
  [[nodiscard]] status stop_reason() const noexcept;

  // How long who waits for it does so without sleeping.
  [[nodiscard]] virtual std::chrono::microseconds spin() const noexcept { return std::chrono::microseconds(0); }
  // Between the first and the last of these calls the thread that waits does itself what another thread would have to be woken for. poll()
  // is true when there was something.
  virtual void begin_polling() noexcept {}
  virtual bool poll() noexcept { return false; }
  virtual void end_polling() noexcept {}
  // What ends it is on its way, and poll() will see it: who waits looks on from now, however long it takes, asleep for moments only.
  // Telling whoever sleeps takes longer than many a transfer. Any thread.
  void comes_soon() noexcept;

  // The lanes that should have threads and have none, so that who waits has to do their urgent works; null where there are threads.
  virtual staging::lanes* lanes_without_threads() noexcept { return nullptr; }

  // Ends what is queued and has not begun of a request that was stopped (cancelled, or past its deadline). Does not block. Any thread.
  void end_queued() override {}

 protected:
  ~operation() override;
  // What cancel() does once the request counts as cancelled. Never in a forked child, where a lock may have been taken when the process
  // forked.
  virtual void end_cancelled() { end_queued(); }
  // Ends it, exactly once. The running request's reference is released: the object may be gone on return.
  void complete(io_result outcome) noexcept;
  // The parts of complete(), for requests that end together: the outcome, and who waits may go on where there is no callback; and the
  // callback, on a thread of the engine, after which they may.
  void settle(io_result outcome) noexcept;
  [[nodiscard]] bool has_callback() const noexcept { return static_cast<bool>(callback_); }
  void call_back() noexcept;
  // Runs a work that calls back on the engine's thread for that. It may have run, and the engine be gone, on return.
  static void run_soon(core::runtime& with, staging::work_list& list, staging::work& item) noexcept;

  std::vector<io_result> items_;

 private:
  // settled: the outcome is known; done: the callback, if there is one, has run too.
  enum class life : std::uint8_t { running, settled, done };

  class callback_work final : public staging::work {
   public:
    explicit callback_work(operation& owner) noexcept : owner_(owner) {}
    bool run() override;  // with it goes the running request's reference
    staging::work_list list;

   private:
    operation& owner_;
  };

  void move_to(life next) noexcept;

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
  std::mutex lock_;  // guards the end: who sees that it is done and takes this once knows that complete() has let go
  std::condition_variable ended_;
};

// One that has ended before it began, with this error (where there is no memory for that: out_of_memory), and without results of single
// requests. The caller's reference.
operation* refused(const status& why) noexcept;

}  // namespace penstock::core
