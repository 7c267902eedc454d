#include "gguf.hpp"

#include <cstdint>
#include <penstock/penstock.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "arguments.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"
#include "to_python.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// --- from C++ to Python

nb::object value_of(bool value) { return nb::bool_(value); }
nb::object value_of(double value) { return made(PyFloat_FromDouble(value)); }
nb::object value_of(std::uint64_t value) { return number(value); }
nb::object value_of(std::int64_t value) { return made(PyLong_FromLongLong(value)); }
// Keeps bytes that are not UTF-8 as surrogates, like in file names.
nb::object value_of(const std::string& text) {
  return made(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}
nb::object value_of(const gguf_array& array);

template <class T>
nb::object any_value_of(const T& value) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string> || std::is_same_v<T, gguf_array>) {
    return value_of(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value_of(static_cast<double>(value));
  } else if constexpr (std::is_signed_v<T>) {
    return value_of(static_cast<std::int64_t>(value));
  } else {
    return value_of(static_cast<std::uint64_t>(value));
  }
}

nb::object value_of(const gguf_array& array) {
  return std::visit(
      []<class T>(const std::vector<T>& items) { return list_of(items, [](const T& each) { return any_value_of<T>(each); }); },
      array.items);
}

nb::object metadata_of(const gguf_header& header) {
  nb::dict told;
  for (const auto& [key, value] : header.metadata)
    told[words(key)] = std::visit([](const auto& each) { return any_value_of(each); }, value);
  return told;
}

// Rows: name, type, shape in elements, elements and bytes per block, offset, bytes.
nb::list rows_of(const gguf_header& header) {
  nb::list rows;
  for (std::size_t i = 0; i < header.elements.size(); ++i) {
    const tensor_facts& tensor = header.tensors.tensors()[i];
    const gguf_elements& elements = header.elements[i];
    rows.append(nb::make_tuple(words(tensor.name), words(elements.type->name), shape_tuple(elements.shape), elements.type->block_elements,
                               elements.type->block_bytes, tensor.offset, tensor.bytes));
  }
  return rows;
}

// Rows: name, type number, shape in elements, offset.
nb::list unknown_rows_of(const gguf_header& header) {
  nb::list rows;
  for (const gguf_unknown_tensor& each : header.unknown)
    rows.append(nb::make_tuple(words(each.name), each.type, shape_tuple(each.shape), each.offset));
  return rows;
}

// --- reading

gguf_header read_gguf_of(const python_file& from) {
  const auto target = from.target;
  auto header = [&] {
    const without_gil unlocked;
    return read_gguf(*target);
  }();
  if (!header) raise(header.error(), {target->path()});
  return *std::move(header);
}

nb::list gguf_files(nb::handle path) {
  const std::string name = path_text(path);
  const auto found = [&] {
    const without_gil unlocked;
    return gguf_files_of(name);
  }();
  if (!found) raise(found.error(), {name});
  nb::list files;
  for (const std::string& each : *found) files.append(path_object(each));
  return files;
}

const gguf_header* gguf_header_of(nb::handle object) {
  if (!nb::isinstance<gguf_header>(object)) throw nb::type_error(("a header must be a GGUFHeader, not " + type_of(object)).c_str());
  return &nb::cast<const gguf_header&>(object);
}

void check_split(nb::list files, nb::list given) {
  std::vector<std::string> paths;
  std::vector<const gguf_header*> headers;
  for (const nb::handle each : files) paths.push_back(path_text(each));
  for (const nb::handle each : given) headers.push_back(gguf_header_of(each));
  if (const status error = check_gguf_files(paths, headers); !error.ok()) raise(error);
}

}  // namespace

void add_gguf(nb::module_& module) {
  nb::class_<gguf_header> type(module, "GGUFHeader", "The contents of a GGUF file.");
  type.def_ro("version", &gguf_header::version)
      .def_ro("alignment", &gguf_header::alignment, "In bytes.")
      .def_prop_ro("metadata", &metadata_of, "The metadata as a new dict on each access: int, float, bool, str, and lists of these.")
      .def_prop_ro(
          "tensors", [](const gguf_header& self) { return self.tensors; }, "The tensors as they are loaded: quantised ones as bytes.")
      .def("rows", &rows_of,
           "Returns (name, type, shape, elements per block, bytes per block, offset, nbytes) for each tensor, in the order of\n"
           "`tensors`.");
  type.def("unknown_rows", &unknown_rows_of, "Returns (name, type number, shape, offset) for each tensor of unknown type, by offset.");
  module.def("read_gguf", &read_gguf_of, "file"_a,
             "Reads the contents of a GGUF file, given as a penstock.File. Raises penstock.InvalidArgument if it is not a GGUF file\n"
             "or is incomplete.");
  module.def("gguf_files", &gguf_files, "path"_a,
             "Returns the files of the model that a GGUF file belongs to: itself alone, or all files that its name implies. Raises\n"
             "penstock.NotFound.");
  module.def("check_gguf_files", &check_split, "files"_a, "headers"_a,
             "Checks that the files make up one model, in this order. Raises penstock.InvalidArgument.");
}

}  // namespace penstock::python
