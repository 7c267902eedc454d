// penstock._native: the public C++ API in Python. Only translates; users import python/penstock/__init__.py.
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

// Called by PyInit__native() below.
NB_MODULE(_native_of_main, module) {
  using namespace penstock::python;
  // Objects that a program keeps forever outlive the interpreter, with everything they refer to; a warning of 20 lines helps nobody.
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
  check_arguments(module);
}

// Only one interpreter of a process can load the module, because its threads and exit handler belong to that interpreter. Checked first: a
// second interpreter that began to load it would destroy the types of the first when it ends. Since Python 3.13 this code runs in the main
// interpreter whichever one imports it, so penstock/__init__.py checks too.
extern "C" NB_EXPORT PyObject* PyInit__native() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "penstock works in the main interpreter of a process only, and this is a sub-interpreter");
    return nullptr;
  }
  return PyInit__native_of_main();
}
