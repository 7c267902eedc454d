// Creates Python objects from many C++ values with Python's own functions: models have thousands of names, vocabularies hundreds of
// thousands. The caller must hold the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

// Takes over an object that a Python function has returned, or raises the exception that it has set.
inline nb::object made(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

inline nb::object words(std::string_view text) {
  return made(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}
inline nb::object number(std::uint64_t value) { return made(PyLong_FromUnsignedLongLong(value)); }

// Returns a list of item(each).
template <class Items, class Item>
nb::object list_of(const Items& items, Item&& item) {
  nb::object list = made(PyList_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t place = 0;
  for (const auto& each : items) PyList_SetItem(list.ptr(), place++, item(each).release().ptr());
  return list;
}

inline nb::object shape_tuple(const std::vector<std::uint64_t>& shape) {
  nb::object lengths = made(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  Py_ssize_t place = 0;
  for (const std::uint64_t length : shape) PyTuple_SetItem(lengths.ptr(), place++, number(length).release().ptr());
  return lengths;
}

}  // namespace penstock::python
