// The part of penstock._native with which penstock.safetensors finds the files of a model.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_models(nb::module_& module);

}  // namespace penstock::python
