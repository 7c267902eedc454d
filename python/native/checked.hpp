// Functions of the module whose errors name the argument that is wrong. nanobind's own list the whole signature, and the types of what was
// given.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

// Puts a callable in place of each function of the module, and of each method of its classes but for the special ones. It calls what it
// stands for, and looks closer only where that has refused its arguments.
void check_arguments(nb::module_& module);

}  // namespace penstock::python
