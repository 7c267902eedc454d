// The settings of cuFile, for penstock.cufile and penstock.gds: read as libcufile.so.0 reads them, by the same code.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_settings(nb::module_& module);

}  // namespace penstock::python
