// Python's global lock, let go of for a while.
#pragma once

#include <Python.h>

#include <chrono>

namespace penstock::python {

// True once the interpreter ends: a thread other than the main one must not take the GIL any more. On any thread.
[[nodiscard]] bool interpreter_is_finalizing() noexcept;

// Takes the GIL. Where the interpreter ends meanwhile, it never returns: before Python 3.14 the thread would be ended in the middle of C++,
// which terminates the process (a daemon thread at work at the end of a program).
void take_gil(PyThreadState* state) noexcept;

// In its scope another thread may have the GIL. In place of nanobind's gil_scoped_release, for what take_gil() says.
class without_gil {
 public:
  without_gil() noexcept : state_(PyEval_SaveThread()) {}
  without_gil(const without_gil&) = delete;
  without_gil& operator=(const without_gil&) = delete;
  ~without_gil() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

// The same for a call that may take long and asks whether it is to end: handlers of signals run meanwhile.
class without_gil_until_signal {
 public:
  without_gil_until_signal() noexcept : state_(PyEval_SaveThread()) {}
  without_gil_until_signal(const without_gil_until_signal&) = delete;
  without_gil_until_signal& operator=(const without_gil_until_signal&) = delete;
  ~without_gil_until_signal() { take_gil(state_); }
  // On the thread that made it. true: a handler has raised an exception, which is set.
  [[nodiscard]] bool is_interrupted() noexcept;

 private:
  PyThreadState* state_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  bool raised_ = false;
};

}  // namespace penstock::python
