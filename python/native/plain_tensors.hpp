// Finds the PyTorch tensors into which the bytes of tensor files can be read directly, for penstock.safetensors.load_into().
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_plain_tensors(nb::module_& module);

}  // namespace penstock::python
