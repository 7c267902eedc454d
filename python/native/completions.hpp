// Where requests under way meet Python again when they have ended.
//
// A request keeps its memory and its file alive, which are Python's, until it has ended; and threads of the engine must never wait for the
// GIL, since a thread that holds it may be waiting for them. So a callback of the engine only puts the request on a list, and one thread of
// this module takes the GIL for all that are on it: it lets go of what they kept and runs the callbacks of the user. Who waits for a
// request takes the GIL anyway and does that himself, so where no callback is to be called the thread lets him come first: else the two
// would hand the GIL to each other for each request.
//
// When the interpreter ends, all requests under way are waited for, and the thread is gone before Python is. What ends later is leaked:
// nothing touches Python any more. In a forked child, what the parent began never ends, and is leaked too: whoever asks for it there is
// told so at once.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>

namespace penstock::python {

namespace nb = nanobind;

class completions;

// Changes with each fork, in the child.
[[nodiscard]] unsigned this_process() noexcept;

// Something under way that holds on to Python. Counted by reference: the object of Python that shows it, and the running request.
class under_way {
 public:
  // keeps_process: the interpreter's end waits for it.
  explicit under_way(bool keeps_process) : keeps_process_(keeps_process) { count_.fetch_add(1, std::memory_order_relaxed); }
  under_way(const under_way&) = delete;
  under_way& operator=(const under_way&) = delete;
  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  // Before the request is started, with the GIL. After it, ended() must be called exactly once. Raises where there is no memory or no
  // thread for it; then nothing began.
  void begin();
  // Undoes begin() for a request that did not start, with the GIL.
  void never_began() noexcept;
  // The running request has ended: on any thread, with the GIL or without. Does not block.
  void ended() noexcept;
  // True in a process forked after it began: what has not ended will never end here, and nothing of it is reported any more.
  [[nodiscard]] bool left_behind() const noexcept;
  // True when there is no thread to report to any more: whoever begins the request then waits for it, and calls reported().
  [[nodiscard]] bool must_wait() const noexcept { return home_ == nullptr; }
  // With the GIL: let go of what was kept, call back. Called once by the thread, when it is told; may have been called before.
  virtual void report() = 0;
  // Whether somebody is to be told by report() at once. On any thread.
  [[nodiscard]] virtual bool hurries() const noexcept { return true; }
  // There is nothing to report any more, and neither this nor its end needs Python: the thread only releases it.
  [[nodiscard]] bool settled() const noexcept { return settled_.load(std::memory_order_acquire); }
  // How many there are in this process.
  static int count() noexcept { return count_.load(std::memory_order_relaxed); }

 protected:
  virtual ~under_way() { count_.fetch_sub(1, std::memory_order_relaxed); }
  void settle() noexcept { settled_.store(true, std::memory_order_release); }
  // The thread gives those who wait no more time.
  void hurry() noexcept;

 private:
  friend class completions;
  inline static std::atomic<int> count_{0};
  const bool keeps_process_;
  std::atomic<int> references_{1};
  std::atomic<bool> settled_{false};
  completions* home_ = nullptr;
  unsigned process_ = 0;
  under_way* next_ = nullptr;  // in the list of those that have ended: to be put there takes no memory
};

// Waits at the interpreter's end; registered with atexit.
void add_completions(nb::module_& module);

}  // namespace penstock::python
