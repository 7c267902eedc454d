// Pipes: the base of penstock/pipe.py.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_pipes(nb::module_& module);

}  // namespace penstock::python
