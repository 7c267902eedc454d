// cuFile's C interface, as libcufile.so.0 has it, for the Python modules that speak it (penstock.cufile, penstock.cuda_bindings).
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_calls(nb::module_& module);

}  // namespace penstock::python
