// A file that has its name only once it is whole: for what Python saves.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

namespace nb = nanobind;

void add_pending_files(nb::module_& module);

}  // namespace penstock::python
