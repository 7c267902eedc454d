// What penstock.cufile asks of the driver of cuFile's interface beyond that interface: its opening, what is registered, what is counted.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_cufile_driver(nb::module_& module);

}  // namespace penstock::python
