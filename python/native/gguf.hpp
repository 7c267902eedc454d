// The part of penstock._native for penstock.gguf.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_gguf(nb::module_& module);

}  // namespace penstock::python
