// penstock.File's file-object interface: a position, and the descriptor. Only one thread at a time may use the position.
#pragma once

#include <nanobind/nanobind.h>

#include "file.hpp"

namespace penstock::python {

void add_position(nb::class_<python_file>& type);

}  // namespace penstock::python
