#include "errors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string_view>

#include "file.hpp"

namespace penstock::python {

namespace {

nb::object word(std::string_view text) { return nb::str(text.data(), text.size()); }

// The kernel's paths are bytes; they are decoded as os.fsdecode() would.
nb::object path_word(const std::string& path) { return path.empty() ? nb::none() : path_object(path); }

// Messages contain paths, which may not be UTF-8.
nb::object message_word(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

}  // namespace

nb::object make_error(const status& error, const error_place& where) {
  const auto domain = error.domain();
  nb::object offset = where.offset ? nb::cast(*where.offset) : nb::none();
  return nb::module_::import_("penstock._core.errors")
      .attr("make_error")(word(to_string(error.code())), message_word(error.message()), word(to_string(domain)), error.native(),
                          path_word(where.file), offset, where.bytes_done);
}

void raise(const status& error, const error_place& where) {
  const nb::object made = make_error(error, where);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw nb::python_error();
}

void raise_unless_ok(const status& error, const error_place& where) {
  if (!error.ok()) raise(error, where);
}

void raise_invalid(const std::string& message) { raise({errc::invalid_argument, message}); }
void raise_bad_memory(const std::string& message) { raise({errc::bad_memory, message}); }

bool interrupted() noexcept { return PyErr_CheckSignals() != 0; }

void raise_if_interrupted() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

}  // namespace penstock::python
