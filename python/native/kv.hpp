// Key-value stores in folders: what penstock.kv.Store stands on.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_kv(nb::module_& module);

}  // namespace penstock::python
