#include "gil.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include "errors.hpp"

namespace penstock::python {

namespace {

// Looked up with dlsym, because only some Python versions declare the name. Looked up when the module is loaded, because a function-local
// static has a lock that a fork may leave held in the child.
using question = int (*)();
const auto ask = [] {
  void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  return reinterpret_cast<question>(found);
}();

}  // namespace

bool interpreter_is_finalizing() noexcept { return Py_IsInitialized() == 0 || (ask != nullptr && ask() != 0); }

void take_gil(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {  // pthread_exit() unwinds; C code throws nothing else
    for (;;) pause();
  }
}

bool without_gil_until_signal::is_interrupted() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (raised_ || now - looked_ < interrupt_interval) return raised_;
  looked_ = now;
  take_gil(state_);
  raised_ = interrupted();
  state_ = PyEval_SaveThread();
  return raised_;
}

}  // namespace penstock::python
