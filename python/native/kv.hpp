// Key-value stores in folders: the base of penstock.kv.Store.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_kv(nb::module_& module);

}  // namespace penstock::python
