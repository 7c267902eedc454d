// A file that gets its name only when it is complete, for saving from Python.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_pending_files(nb::module_& module);

}  // namespace penstock::python
