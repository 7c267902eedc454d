// Reports the end of requests to Python.
//
// A request keeps its memory and its file, which belong to Python, alive until it ends. Threads of the engine must never wait for the GIL,
// because a thread that holds it may be waiting for them. So a callback of the engine only appends the request to a list. One thread of
// this module takes the GIL for all listed requests, releases what they kept and runs the user's callbacks. A thread that waits for a
// request takes the GIL anyway and does this itself. If there is no callback to run, the module's thread therefore lets the waiting thread
// go first; otherwise the two would exchange the GIL for each request.
//
// At the interpreter's end, the module waits for all requests under way, and its thread ends before Python does. Requests that end later
// are leaked, because nothing may touch Python any more. In a forked child, requests of the parent never end and are leaked too; whoever
// asks for their results there gets an error at once.
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

// Increases with each fork, in the child.
[[nodiscard]] unsigned this_process() noexcept;

// Something under way that keeps Python objects. Reference-counted: the Python object that shows it and the running request each hold a
// reference.
class under_way {
 public:
  // keeps_process: the interpreter waits for it before it ends.
  explicit under_way(bool keeps_process) : keeps_process_(keeps_process) { count_.fetch_add(1, std::memory_order_relaxed); }
  under_way(const under_way&) = delete;
  under_way& operator=(const under_way&) = delete;
  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  // Call it with the GIL before the request starts; ended() must then be called exactly once. Raises if memory or a thread is missing;
  // nothing has begun then.
  void begin();
  // Undoes begin() for a request that did not start. Needs the GIL.
  void never_began() noexcept;
  // Call it when the running request has ended. Any thread, with or without the GIL. Does not block.
  void ended() noexcept;
  // True in a process forked after it began: it never ends here, and nothing of it is reported.
  [[nodiscard]] bool left_behind() const noexcept;
  // True if the thread is gone: the caller that begins the request then waits for it and calls report().
  [[nodiscard]] bool must_wait() const noexcept { return home_ == nullptr; }
  // Releases what was kept and runs callbacks. Needs the GIL. The thread calls it once; it may have been called before.
  virtual void report() = 0;
  // True if report() must run without delay. Any thread.
  [[nodiscard]] virtual bool hurries() const noexcept { return true; }
  // True if nothing is left to report, and neither this nor its destruction needs Python: the thread then only releases it.
  [[nodiscard]] bool settled() const noexcept { return settled_.load(std::memory_order_acquire); }
  // Number of live objects in this process.
  static int count() noexcept { return count_.load(std::memory_order_relaxed); }

 protected:
  virtual ~under_way() { count_.fetch_sub(1, std::memory_order_relaxed); }
  void settle() noexcept { settled_.store(true, std::memory_order_release); }
  // Makes the thread report now, without giving waiting threads more time.
  void hurry() noexcept;

 private:
  friend class completions;
  inline static std::atomic<int> count_{0};
  const bool keeps_process_;
  std::atomic<int> references_{1};
  std::atomic<bool> settled_{false};
  completions* home_ = nullptr;
  unsigned process_ = 0;
  under_way* next_ = nullptr;  // links the list of ended requests, so that adding one needs no memory
};

// Registers the wait at the interpreter's end with atexit.
void add_completions(nb::module_& module);

}  // namespace penstock::python
