// Python's global lock, let go of for a while.
#pragma once

#include <Python.h>

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

}  // namespace penstock::python
