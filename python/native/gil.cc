#include "gil.hpp"

#include <dlfcn.h>
#include <unistd.h>

namespace penstock::python {

bool interpreter_is_finalizing() noexcept {
  // Not by a name that only some versions of Python declare.
  using question = int (*)();
  static const auto ask = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return reinterpret_cast<question>(found);
  }();
  return Py_IsInitialized() == 0 || (ask != nullptr && ask() != 0);
}

void take_gil(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {  // the unwinding of pthread_exit(): nothing else comes out of C
    for (;;) pause();
  }
}

}  // namespace penstock::python
