// penstock._native's part of penstock.safetensors that finds the files of a model.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_models(nb::module_& module);

}  // namespace penstock::python
