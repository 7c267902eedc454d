// storage_options= of penstock.open(): how an object on a server is reached.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <penstock/penstock.hpp>

namespace penstock::python {

namespace nb = nanobind;

struct noted_retries {
  std::shared_ptr<remote_retries> kept = std::make_shared<remote_retries>();
};

// A mapping of names to strings, bools and numbers, or None. Raises TypeError for another type, penstock.InvalidArgument for a name or a
// value that there is not; no message has a value, but for an unknown kind.
remote_options parse_storage_options(nb::handle options);

void add_remote(nb::module_& module);

}  // namespace penstock::python
