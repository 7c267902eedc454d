// Releases and takes Python's global lock.
#pragma once

#include <Python.h>

#include <chrono>

namespace penstock::python {

// Returns true once the interpreter is shutting down: only the main thread may then take the GIL. Any thread.
[[nodiscard]] bool interpreter_is_finalizing() noexcept;

// Takes the GIL. Never returns if the interpreter exits while this waits: before Python 3.14 Python would exit the thread inside C++ code,
// which terminates the process (for example, a daemon thread that is running when the program exits).
void take_gil(PyThreadState* state) noexcept;

// Releases the GIL in its scope. Replaces nanobind's gil_scoped_release because of the problem described at take_gil().
class without_gil {
 public:
  without_gil() noexcept : state_(PyEval_SaveThread()) {}
  without_gil(const without_gil&) = delete;
  without_gil& operator=(const without_gil&) = delete;
  ~without_gil() { take_gil(state_); }

 private:
  PyThreadState* state_;
};

// The same for a call that may take long and polls whether it should stop: signal handlers run during the call.
class without_gil_until_signal {
 public:
  without_gil_until_signal() noexcept : state_(PyEval_SaveThread()) {}
  without_gil_until_signal(const without_gil_until_signal&) = delete;
  without_gil_until_signal& operator=(const without_gil_until_signal&) = delete;
  ~without_gil_until_signal() { take_gil(state_); }
  // Call on the thread that created the object. Returns true if a handler has raised; the exception is then set.
  [[nodiscard]] bool is_interrupted() noexcept;

 private:
  PyThreadState* state_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  bool raised_ = false;
};

}  // namespace penstock::python
