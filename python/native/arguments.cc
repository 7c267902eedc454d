#include "arguments.hpp"

#include "errors.hpp"

namespace penstock::python {

namespace {

[[noreturn]] void refuse_type(nb::handle value, const char* name, const char* wanted) {
  PyErr_Clear();
  throw nb::type_error((std::string(name) + " must be " + wanted + ", not " + type_of(value)).c_str());
}

nb::object integer(nb::handle value, const char* name) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (index.is_valid()) return index;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  refuse_type(value, name, "an int");
}

[[noreturn]] void refuse_value(nb::handle index, const char* name, const char* why) {
  PyErr_Clear();
  raise_invalid(std::string(name) + " is " + nb::str(index).c_str() + ": " + why);
}

}  // namespace

std::string type_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

std::int64_t signed_integer(nb::handle value, const char* name) {
  const auto index = integer(value, name);
  const auto number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) refuse_value(index, name, "it does not fit in 64 bits");
  return number;
}

std::uint64_t unsigned_integer(nb::handle value, const char* name) {
  const auto index = integer(value, name);
  const auto number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
    refuse_value(index, name, "it must be between 0 and 2**64 - 1");
  }
  return number;
}

double real_number(nb::handle value, const char* name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number != -1.0 || PyErr_Occurred() == nullptr) return number;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  refuse_type(value, name, "a number");
}

}  // namespace penstock::python
