// Access to the cuFile driver beyond the C interface, for penstock.cufile: opening, registrations, statistics.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_driver(nb::module_& module);

}  // namespace penstock::python
