// The file-object interface of penstock.File: a position, and the descriptor. One thread at a time uses the position.
#pragma once

#include <nanobind/nanobind.h>

#include "file.hpp"

namespace penstock::python {

void add_position(nb::class_<python_file>& type);

}  // namespace penstock::python
