// The headers and contents of tensor files, for penstock.safetensors.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_tensors(nb::module_& module);

}  // namespace penstock::python
