// cuFile's settings, for penstock.cufile and penstock.gds; read by the same code as in libcufile.so.0.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_settings(nb::module_& module);

}  // namespace penstock::python
