// read_tree().
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_trees(nb::module_& module);

}  // namespace penstock::python
