#include "gil.hpp"

#include <dlfcn.h>
#include <unistd.h>

namespace penstock::python {

namespace {

// Not by a name that only some versions of Python declare. Asked when the module is loaded: what is made at its first use has a lock, which
// a fork may leave held in the child.
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
  } catch (...) {  // the unwinding of pthread_exit(): nothing else comes out of C
    for (;;) pause();
  }
}

}  // namespace penstock::python
