// Converts Python objects to numbers where nanobind does not do it: members of tuples and arrays, and arguments of several types. All need
// the GIL. `name` is what errors call the number, such as "timeout" or "an offset".
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// Raises TypeError if it is not an integer, and penstock.InvalidArgument if it does not fit into 64 bits.
std::int64_t signed_integer(nb::handle value, const char* name);
// Raises the same, and penstock.InvalidArgument for a negative number.
std::uint64_t unsigned_integer(nb::handle value, const char* name);
// Raises TypeError if it is not a number.
double real_number(nb::handle value, const char* name);
// The name of the object's type, for messages.
std::string type_of(nb::handle object);

}  // namespace penstock::python
