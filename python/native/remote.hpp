// The argument storage_options= of penstock.open(): how to reach an object on a server.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <penstock/penstock.hpp>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

struct noted_retries {
  std::shared_ptr<remote_retries> kept = std::make_shared<remote_retries>();
};

// options: a mapping of names to strings, bools and numbers, or None. Raises TypeError for a different type, and penstock.InvalidArgument
// for an unknown name or value. No message contains a value, except an unknown kind.
remote_options parse_storage_options(nb::handle options);

// Raises penstock.InvalidArgument, because storage_options was passed with a name that is not a URL.
[[noreturn]] void raise_not_a_url(const std::string& name);

void add_remote(nb::module_& module);

}  // namespace penstock::python
