// Reports completed requests to Python.
//
// A request keeps its memory and its file, which belong to Python, alive until it completes. Engine threads must never wait for the GIL,
// because a thread that holds it may be waiting for them. So an engine callback only appends the request to a list. One thread of this
// module takes the GIL for all listed requests, releases what they kept and runs the user's callbacks. A thread that waits for a request
// needs the GIL in any case, and does this itself. So if there is no callback to run, and Python still refers to a request, the module's
// thread leaves it to that thread for some milliseconds; otherwise the two would exchange the GIL for each request.
//
// At interpreter shutdown, the module waits for all requests in flight, and its thread exits before Python does. Requests that complete
// later are leaked, because Python must no longer be used. In a forked child, the parent's requests never complete and are also leaked;
// requesting their results there raises an error at once.
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

// Increases in the child with each fork.
[[nodiscard]] unsigned this_process() noexcept;

// An operation in flight that keeps Python objects alive. Reference-counted: its Python object and the running request each hold a
// reference.
class under_way {
 public:
  // keeps_process: the interpreter waits for it before it exits.
  explicit under_way(bool keeps_process) : keeps_process_(keeps_process) { count_.fetch_add(1, std::memory_order_relaxed); }
  under_way(const under_way&) = delete;
  under_way& operator=(const under_way&) = delete;
  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  // Call with the GIL before the request starts; ended() must then be called exactly once. Raises if memory runs out or no thread can be
  // started; in that case nothing has started.
  void begin();
  // Undoes begin() for a request that did not start. Needs the GIL.
  void never_began() noexcept;
  // Call when the running request has completed. Any thread, with or without the GIL. Does not block.
  void ended() noexcept;
  // While this exists, a thread waits for the request and reports it itself.
  class awaited {
   public:
    explicit awaited(under_way& of) noexcept : of_(of) { of_.waiting_.fetch_add(1); }
    awaited(const awaited&) = delete;
    awaited& operator=(const awaited&) = delete;
    ~awaited();

   private:
    under_way& of_;
  };
  [[nodiscard]] bool is_awaited() const noexcept { return waiting_.load() > 0; }
  // Returns true in a process forked after it started: it never completes here and is not reported.
  [[nodiscard]] bool left_behind() const noexcept;
  // Returns true if the thread no longer exists: the caller that starts the request then waits for it and calls report().
  [[nodiscard]] bool must_wait() const noexcept { return home_ == nullptr; }
  // Releases what was kept and runs callbacks. Needs the GIL. The thread calls this once; it may already have been called.
  virtual void report() = 0;
  // Returns true if report() must run without delay. Any thread.
  [[nodiscard]] virtual bool hurries() const noexcept { return true; }
  // Returns true if nothing is left to report, and neither this nor its destruction needs Python: the thread then only releases it.
  [[nodiscard]] bool settled() const noexcept { return settled_.load(std::memory_order_acquire); }
  // Returns the number of live objects in this process.
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
  std::atomic<int> waiting_{0};  // threads that wait for it
  std::atomic<bool> settled_{false};
  completions* home_ = nullptr;
  unsigned process_ = 0;
  under_way* next_ = nullptr;  // links the list of completed requests, so that adding one needs no memory
};

// Reports what has completed, then ends the module's thread until the next request. Releases the GIL meanwhile.
void rest_completions();

// Registers the wait at interpreter shutdown with atexit.
void add_completions(nb::module_& module);

}  // namespace penstock::python
