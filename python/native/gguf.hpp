// The part of penstock._native that penstock.gguf uses.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_gguf(nb::module_& module);

}  // namespace penstock::python
