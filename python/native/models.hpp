// The part of penstock._native that penstock.safetensors uses to find a model's files.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_models(nb::module_& module);

}  // namespace penstock::python
