// Makes errors of the module's functions name the wrong argument. nanobind's own errors list the whole signature and the types of all
// arguments.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

// Wraps each function of the module, and each method of its classes except the special ones. The wrapper calls the original, and examines
// the arguments only if the original refused them.
void check_arguments(nb::module_& module);

}  // namespace penstock::python
