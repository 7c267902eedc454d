// penstock._native: the public C++ API in Python. A thin binding; users import penstock (python/penstock/__init__.py).
#include <nanobind/nanobind.h>

#include "buffers.hpp"
#include "checked.hpp"
#include "completions.hpp"
#include "cufile_calls.hpp"
#include "cufile_driver.hpp"
#include "cufile_settings.hpp"
#include "device.hpp"
#include "file.hpp"
#include "futures.hpp"
#include "gguf.hpp"
#include "info.hpp"
#include "kv.hpp"
#include "models.hpp"
#include "pending.hpp"
#include "pipes.hpp"
#include "plain_tensors.hpp"
#include "remote.hpp"
#include "streams.hpp"
#include "tensors.hpp"
#include "trees.hpp"

// Called by PyInit__native() below.
NB_MODULE(_native_of_main, module) {
  using namespace penstock::python;
  // Objects that a program keeps forever outlive the interpreter, with everything they refer to; a 20-line warning about that is of no use.
  nanobind::set_leak_warnings(false);
  add_completions(module);
  add_buffers(module);
  add_devices(module);
  add_futures(module);
  add_streams(module);
  add_files(module);
  add_remote(module);
  add_info(module);
  add_cufile_settings(module);
  add_cufile_calls(module);
  add_cufile_driver(module);
  add_pipes(module);
  add_tensors(module);
  add_models(module);
  add_gguf(module);
  add_kv(module);
  add_plain_tensors(module);
  add_pending_files(module);
  add_trees(module);
  check_arguments(module);
}

// Only one interpreter per process can load the module, because its threads and exit handler belong to that interpreter. This is checked
// first: a second interpreter that started to load the module would destroy the first one's types when it exits. Since Python 3.13 this
// code runs in the main interpreter regardless of which one imports it, so penstock/__init__.py checks too.
extern "C" NB_EXPORT PyObject* PyInit__native() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "penstock works only in the main interpreter of a process, not in a sub-interpreter");
    return nullptr;
  }
  return PyInit__native_of_main();
}
