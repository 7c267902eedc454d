// PyTorch's tensors that bytes of tensor files may be read into as they are: for penstock.safetensors.load_into().
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_plain_tensors(nb::module_& module);

}  // namespace penstock::python
