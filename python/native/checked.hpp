// Makes errors from the module's functions say which argument is wrong. nanobind's own errors list the whole signature and the types of all
// arguments.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

// Wraps each function in the module, and each method of its classes except special ones. The wrapper calls the original, and examines the
// arguments only if the original rejected them.
void check_arguments(nb::module_& module);

}  // namespace penstock::python
