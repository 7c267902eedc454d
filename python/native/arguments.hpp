// Objects of Python as numbers, where nanobind does not see the argument itself: members of tuples and arrays, and what may be of several
// types. All need the GIL, and say in the error what the number was to be: `name`, such as "timeout" or "an offset".
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// Raises TypeError for what is no integer, penstock.InvalidArgument for one that 64 bits do not hold.
std::int64_t signed_integer(nb::handle value, const char* name);
// Raises the same, and penstock.InvalidArgument below zero.
std::uint64_t unsigned_integer(nb::handle value, const char* name);
// Raises TypeError for what is no number.
double real_number(nb::handle value, const char* name);
// Of the object's type, for messages.
std::string type_of(nb::handle object);

}  // namespace penstock::python
