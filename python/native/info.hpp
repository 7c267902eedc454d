// Adds version(), stats() and summary().
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_info(nb::module_& module);

}  // namespace penstock::python
