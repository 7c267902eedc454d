// Converts Python objects to numbers where nanobind does not: members of tuples and arrays, and arguments that accept several types. All
// functions need the GIL. `name` is the number's name in error messages, such as "timeout" or "an offset".
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// Raises TypeError if the value is not an integer, and penstock.InvalidArgument if it does not fit into 64 bits.
std::int64_t signed_integer(nb::handle value, const char* name);
// Raises the same errors, and penstock.InvalidArgument for a negative number.
std::uint64_t unsigned_integer(nb::handle value, const char* name);
// Raises TypeError if the value is not a number.
double real_number(nb::handle value, const char* name);
// Returns the name of the object's type, for messages.
std::string type_of(nb::handle object);

}  // namespace penstock::python
