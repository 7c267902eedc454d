// penstock._native's part of penstock.gguf.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_gguf(nb::module_& module);

}  // namespace penstock::python
