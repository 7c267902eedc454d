// cuFile's C interface, as in libcufile.so.0, for the Python modules on top of it (penstock.cufile, penstock.cuda_bindings).
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_calls(nb::module_& module);

}  // namespace penstock::python
