// penstock.open() and penstock.File.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_files(nb::module_& module);

}  // namespace penstock::python
